"""Runs the scheduler's steps on the device."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.serving.adapters.stacks import put
from launch.serving.runner.programs import HEADER, PagedDecoder, Programs
from launch.serving.sampling.draw import Drawn
from launch.serving.sampling.slot_settings import SlotSettings, biases
from launch.serving.sampling.state import SamplerState
from launch.serving.sampling.variants import VARIANTS
from launch.serving.scheduler.scheduler import SchedulerLimits
from launch.serving.scheduler.slots import Slots
from launch.serving.scheduler.steps import Step
from models.parameters import merge


class Result:
    """What a step drew; the device may still be at it."""

    def __init__(self, drawn: Drawn | None, rows: int) -> None:
        self._drawn, self._rows = drawn, rows
        if drawn is not None:
            for leaf in jax.tree.leaves(drawn):
                leaf.copy_to_host_async()

    def wait(self) -> Drawn:
        """NumPy arrays of the rows without padding, once the device is done."""
        if self._drawn is None:
            return Drawn(np.zeros(self._rows, np.int32))  # type: ignore[arg-type]
        leaves = ((None if x is None else np.asarray(x)[: self._rows]) for x in self._drawn)
        return Drawn(*leaves)  # type: ignore[arg-type]


class Runner:
    """The model, the pages and what is known of the slots, on a mesh."""

    def __init__(
        self,
        graph: nnx.GraphDef[Any],
        parameters: Mapping[str, jax.Array],
        mesh: Mesh,
        limits: SchedulerLimits,
        *,
        vocab_size: int,
        cache_dtype: str | None = None,
    ) -> None:
        self._parameters, self._limits = parameters, limits
        self._settings = SlotSettings(limits.slots)
        self._pages = make_pages(
            graph, parameters, mesh, limits.blocks + 1, limits.block_size, cache_dtype
        )
        replicated = NamedSharding(mesh, PartitionSpec())
        self._state = jax.jit(
            lambda: SamplerState.empty(limits.slots, vocab_size), out_shardings=replicated
        )()
        self._vocab_size = vocab_size
        self.programs = Programs(
            graph,
            parameters,
            mesh,
            limits.buckets,
            vocab_size=vocab_size,
            context=limits.context,
            pages=self._pages,
            state=self._state,
        )

    def warm_up(
        self, keys: Iterable[Any], on_program: Callable[[Any], None] = lambda key: None
    ) -> None:
        """Compiles programs; `on_program` is told of each."""
        for key in keys:
            self.programs.get(key)
            on_program(key)

    def put_adapter(self, place: int, values: Mapping[str, np.ndarray]) -> None:
        """Lays an adapter into the stacks, for steps from the next one on."""
        self._parameters = {**self._parameters, **put(self._parameters, place, values)}

    def reset(self) -> None:
        """Forgets who had the slots: another scheduler begins."""
        self._settings.reset()

    def run(self, step: Step, slots: Slots) -> Result:
        """Hands a step to the device. Steps must come in the order in which they were planned."""
        step = replace(step, bucket=self.programs.ready(step.bucket))
        self._enter_new(step)
        inputs = self._inputs(step, slots)
        logits, self._pages = self.programs.get(step.bucket)(
            self._parameters, self._pages, self._state.last, inputs
        )
        if not step.samples.any():
            return Result(None, len(step.slots))
        return self._draw(step, logits)

    def _enter_new(self, step: Step) -> None:
        """Tells the device of sequences that have got their slots since the last step."""
        news = np.flatnonzero(self._settings.serial[step.slots] != step.serials)
        for row in news.tolist():
            sequence, slot = step.sequences[row], int(step.slots[row])
            assert sequence.request is not None
            if self._settings.enter(slot, int(step.serials[row]), sequence.request):
                place = [slot, sequence.prompt_length, len(sequence.tokens)]
                text = np.zeros(self._limits.context, np.int32)
                text[: len(sequence.tokens)] = sequence.tokens
                self._state = self.programs.get("enter")(
                    self._state, np.array(place, np.int32), text, *biases(sequence.request)
                )

    def _inputs(self, step: Step, slots: Slots) -> np.ndarray:
        bucket, rows = step.bucket, len(step.slots)
        inputs = np.zeros((bucket.rows, HEADER + bucket.tokens + bucket.blocks), np.int32)
        inputs[rows:, 2] = self._settings.padding
        adapters = self._settings.adapter[step.slots]
        head = (step.starts, step.counts, step.slots, step.on_device, adapters)
        inputs[:rows, :HEADER] = np.stack(head, axis=1)
        inputs[:rows, HEADER + bucket.tokens :] = slots.tables[step.slots, : bucket.blocks]
        for row in np.flatnonzero(~step.on_device).tolist():
            start, count = int(step.starts[row]), int(step.counts[row])
            tokens = step.sequences[row].tokens[start : start + count]
            inputs[row, HEADER : HEADER + count] = tokens
        return inputs

    def _draw(self, step: Step, logits: jax.Array) -> Result:
        rows = len(step.slots)
        places = np.full(step.bucket.rows, self._settings.padding)
        places[:rows] = np.where(step.samples, step.slots, self._settings.padding)
        variant = int(self._settings.variant[places].max())
        numbers = np.zeros(step.bucket.rows, np.int32)
        prompts = [sequence.prompt_length for sequence in step.sequences]
        numbers[:rows] = step.starts + step.counts - prompts
        mask = self._mask(step) if VARIANTS[variant].masks else None
        drawn, self._state = self.programs.get((variant, step.bucket.rows))(
            logits, self._state, self._settings.rows(places, numbers), mask
        )
        return Result(drawn, rows)

    def _mask(self, step: Step) -> np.ndarray:
        words = -(-self._vocab_size // 32)
        mask = np.full((step.bucket.rows, words), 0xFFFFFFFF, np.uint32)
        for row, sequence in enumerate(step.sequences):
            grammar = sequence.request.grammar if sequence.request else None
            if grammar is not None and step.samples[row]:
                mask[row] = grammar.mask()
        return mask


def make_pages(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    mesh: Mesh,
    blocks: int,
    block_size: int,
    dtype: str | None = None,
) -> Any:
    """Empty pages on the mesh, in the model's dtype unless another is given; key-value heads are
    split over its axis `model`."""
    heads = "model" if "model" in mesh.axis_names else None
    sharding = NamedSharding(mesh, PartitionSpec(None, None, heads, None))

    def empty() -> Any:
        model: PagedDecoder = merge(graph, parameters)
        return model.init_pages(blocks, block_size, dtype)

    return jax.jit(empty, out_shardings=sharding)()
