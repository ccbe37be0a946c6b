"""Runs the scheduler's steps on the device."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.serving.adapters.stacks import put
from launch.serving.cache.prefixes import Key
from launch.serving.requests import Source
from launch.serving.runner.arrays import HEADER, Scores, make_pages
from launch.serving.runner.meter import Meter
from launch.serving.runner.programs import COPY, READ, WRITE, Guesses, Programs, Scored
from launch.serving.sampling.draw import Drawn, Settings
from launch.serving.sampling.slot_settings import SlotSettings, biases
from launch.serving.sampling.state import SamplerState
from launch.serving.sampling.suppressed import NONE_SUPPRESSED, Suppressed
from launch.serving.sampling.variants import VARIANTS
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.slots import Slots
from launch.serving.scheduler.steps import Step
from launch.serving.speculation.proposer import Proposer, accepted
from models.decoder.cache_groups import CacheGroups, with_cache_groups
from models.parallel.paged_split import PagedSplit, with_paged_split


class Result:
    """What a step drew; the device may still be at it."""

    def __init__(
        self,
        drawn: Drawn | None,
        rows: np.ndarray,
        seconds: float | None = None,
        scores: Scores | None = None,
    ) -> None:
        """`rows` int64 [n]: those that are no padding."""
        self._drawn, self._rows = drawn, rows
        self._scores = scores
        self.seconds = seconds

    def wait(self) -> Drawn:
        """NumPy arrays of the rows without padding, once the device is done."""
        if self._drawn is None:
            return Drawn(np.zeros(len(self._rows), np.int32))  # type: ignore[arg-type]
        leaves = ((None if x is None else np.asarray(x)[self._rows]) for x in self._drawn)
        return Drawn(*leaves)  # type: ignore[arg-type]

    def scores(self) -> Scores | None:
        """NumPy arrays of the same rows, if anybody wants them."""
        if self._scores is None:
            return None
        return Scores(*(np.asarray(x)[self._rows] for x in self._scores))


class CheckedResult:
    """What a step with guesses drew."""

    def __init__(self, step: Step, guesses: Any, drawn: Drawn, seconds: float | None) -> None:
        self._step, self._guesses, self._tokens = step, guesses, drawn.tokens
        self.seconds = seconds

    def scores(self) -> None:
        """Prompts are not computed with guesses."""

    def wait(self) -> Drawn:
        """Tokens [n, 1 + K] of the rows without padding, -1 behind the first wrong guess."""
        rows, width = len(self._step.slots), self._step.bucket.tokens
        tokens = np.asarray(self._tokens).reshape(-1, width)[:rows]
        guesses = np.asarray(self._guesses)[:rows]
        return Drawn(accepted(self._step, guesses, tokens))  # type: ignore[arg-type]


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
        proposer: Proposer | None = None,
        cache_split: PagedSplit | None = None,
        cache_groups: CacheGroups | None = None,
        suppressed: Suppressed = NONE_SUPPRESSED,
        timed: bool = False,
    ) -> None:
        """With `timed`, results say what steps take on the device. `cache_groups` are those of the
        limits' windows; without any all layers share a table."""
        if cache_groups is not None:
            graph = with_cache_groups(graph, parameters, cache_groups)
        if cache_split is not None:
            graph = with_paged_split(graph, parameters, cache_split)
        self._proposer = proposer
        self._meter = Meter(timed=timed)  # of the step that is handed over
        if proposer is not None:
            proposer.meter = self._meter
        self._parameters, self._limits = parameters, limits
        self._settings = SlotSettings(limits.slots)
        self._last_inputs = np.zeros((0, 0), np.int32)
        self._last_settings = self._settings.rows(np.zeros(0, int), np.zeros(0)), 0
        self._pages = make_pages(
            graph,
            parameters,
            mesh,
            limits.groups * (limits.blocks_of_group + 1),
            limits.block_size,
            cache_dtype,
            cache_split,
            (limits.slots + 1, limits.sources[-1]) if limits.sources else None,
        )
        replicated = NamedSharding(mesh, PartitionSpec())
        self._state = jax.jit(
            lambda: SamplerState.empty(limits.slots, vocab_size), out_shardings=replicated
        )()
        self.programs = Programs(
            graph,
            parameters,
            mesh,
            limits.buckets,
            vocab_size=vocab_size,
            context=limits.context,
            pages=self._pages,
            state=self._state,
            guesses=limits.guesses,
            whole_outputs=proposer is not None and proposer.reads_all_outputs,
            tables=len(limits.windows),
            sources=limits.sources,
            features=limits.features,
            suppressed=suppressed,
        )
        self._sources: list[Key | None] = [None] * limits.slots  # whose source a place holds
        self._allowed = suppressed.masks(vocab_size)

    def warm_up(
        self, keys: Iterable[Any], on_program: Callable[[Any], None] = lambda key: None
    ) -> None:
        """Compiles programs; `on_program` is told of each."""
        for key in keys:
            self.programs.get(key)
            on_program(key)
        for key in () if self._proposer is None else self._proposer.compile_all():
            on_program(key)

    @property
    def pages(self) -> Any:
        """Keys and values of all layers, as the next step will find them."""
        return self._pages

    def worth_guessing(self, sequence: Sequence) -> bool:
        """Whether there is a guess of what follows in a text."""
        return self._proposer is not None and self._proposer.worth_guessing(sequence)

    def put_adapter(self, place: int, values: Mapping[str, np.ndarray]) -> None:
        """Lays an adapter into the stacks, for steps from the next one on."""
        self._parameters = {**self._parameters, **put(self._parameters, place, values)}

    def read_blocks(self, blocks: Items[int]) -> Any:
        """Keys and values of blocks, when all steps until now have run."""
        return self.programs.get(READ)(self._pages, self._pad_blocks(blocks))

    def write_blocks(self, blocks: Items[int], values: Any) -> None:
        """Puts what `read_blocks` of another runner gave into blocks, before the next step."""
        places = jax.tree.map(lambda leaf: leaf.sharding, self._pages)
        values = jax.device_put(values, places)
        self._pages = self.programs.get(WRITE)(self._pages, self._pad_blocks(blocks), values)

    def _pad_blocks(self, blocks: Items[int]) -> np.ndarray:
        """Blocks, as many as a text may have; the rest is the scratch block."""
        most = self._limits.buckets.blocks[-1] * len(self._limits.windows)
        padded = np.zeros(most, np.int32)
        padded[: len(blocks)] = blocks
        return padded

    def reset(self) -> None:
        """Forgets who had the slots: another scheduler begins."""
        self._settings.reset()

    def run(self, step: Step, slots: Slots) -> Result | CheckedResult:
        """Hands a step to the device. Steps must come in the order in which they were planned."""
        self._meter.start()
        if not step.again:
            self._enter_new(step)
        if step.speculative:
            return self._check(step, slots)
        scored = not step.is_decode and any(row.scores_prompt for row in step.sequences)
        ready = self.programs.ready_to_score if scored else self.programs.ready
        step = step._replace(bucket=ready(step.bucket))
        inputs = self._inputs(step, slots)
        logits, outputs, scores = self._forward(step, inputs, scored)
        if self._proposer is not None:
            self._proposer.observe(step, inputs, self._state.last, outputs)
        drawn = self._draw(step, logits) if step.samples.any() else None
        return Result(drawn, step.rows, self._meter.seconds, scores)

    def _forward(
        self, step: Step, inputs: np.ndarray, scored: bool
    ) -> tuple[jax.Array, jax.Array, Scores | None]:
        """Logits, outputs and, if they are wanted, scores of the rows' tokens."""
        arrays = self._parameters, self._pages, self._state.last, inputs
        if not scored:
            logits, outputs, self._pages = self._program(step.bucket)(*arrays)
            return logits, outputs, None
        program = self._program(Scored(step.bucket))
        logits, outputs, self._pages, scores = program(*arrays, _following(step))
        return logits, outputs, scores

    def _program(self, key: Any) -> Any:
        """A program of this step."""
        program = self.programs.get(key)
        self._meter.count(key, program)
        return program

    def settings_of_slots(self, slots: np.ndarray) -> Settings:
        """How tokens of these slots are drawn, for answers that begin."""
        return self._settings.rows(slots, np.zeros_like(slots))

    def run_programs(
        self, forward: Any, draw: Any, inputs: np.ndarray, settings: Settings
    ) -> jax.Array:
        """A step without a scheduler: the tokens that two programs draw."""
        logits, _, self._pages = forward(self._parameters, self._pages, self._state.last, inputs)
        drawn, self._state = draw(logits, self._state, settings, None)
        tokens: jax.Array = drawn.tokens
        return tokens

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
                self._state = self._program("enter")(
                    self._state, np.array(place, np.int32), text, *biases(sequence.request)
                )
            if len(sequence.request.source):
                self._lay_source(slot, sequence.root, sequence.request.source)

    def _lay_source(self, slot: int, name: Key, source: Source) -> None:
        """Lays down what the decoder will look at: read by the encoder, unless another place has
        it, or had it last."""
        if self._sources[slot] == name:
            return
        if name in self._sources:
            where = np.array([self._sources.index(name), slot], np.int32)
            self._pages = self._program(COPY)(self._pages, where)
        else:
            key = self.programs.for_source(len(source))
            where = np.array([slot, len(source)], np.int32)
            given = np.asarray(source, np.float32 if self._limits.features else np.int32)
            padded = np.pad(given, [(0, key.tokens - len(source))] + [(0, 0)] * (given.ndim - 1))
            self._pages = self._program(key)(self._parameters, self._pages, where, padded)
        self._sources[slot] = name

    def _check(self, step: Step, slots: Slots) -> CheckedResult:
        """A step with guesses: what the model draws in their places."""
        assert self._proposer is not None
        first = step._replace(
            bucket=step.bucket._replace(tokens=1), counts=np.ones_like(step.counts)
        )
        inputs = self._inputs(first, slots)
        inputs[: len(step.slots), 1] = step.counts
        settings, variant = self._settings_of(first)
        guesses = self._proposer.propose(step, inputs, settings)
        logits, outputs, self._pages = self._program(Guesses(step.bucket))(
            self._parameters, self._pages, inputs, guesses
        )
        drawn, self._state = self._program((variant, step.bucket.rows * step.bucket.tokens))(
            logits, self._state, self._at_each_place(settings, step.bucket.tokens), None
        )
        self._proposer.verified(step, inputs, guesses, drawn.tokens, outputs)
        return CheckedResult(step, guesses, drawn, self._meter.seconds)

    def _at_each_place(self, settings: Settings, width: int) -> Settings:
        """Settings of rows as those of `width` tokens each; none of them is remembered."""
        repeated = (np.repeat(np.asarray(array), width, axis=0) for array in settings)
        slots, numbers, *rest = repeated
        places = np.tile(np.arange(width, dtype=np.int32), len(settings.slots))
        arrays: tuple[Any, ...] = (np.full_like(slots, self._settings.padding), numbers + places)
        return Settings(*arrays, *rest)

    def _inputs(self, step: Step, slots: Slots) -> np.ndarray:
        bucket, count = step.bucket, len(step.rows)
        width = HEADER + bucket.tokens + slots.tables.shape[1] * bucket.blocks
        if step.again and self._last_inputs.shape == (bucket.rows, width):
            inputs = self._last_inputs.copy()  # the device may still read it
        else:
            inputs = np.zeros((bucket.rows, width), np.int32)
            inputs[:, 2] = self._settings.padding
            inputs[step.rows, 1], inputs[step.rows, 2] = step.counts, step.slots
            inputs[step.rows, 4] = self._settings.adapter[step.slots]
        own = slice(count) if slots.groups == 1 else step.rows
        inputs[own, 0], inputs[own, 3] = step.starts, step.on_device
        tables = slots.tables[step.slots, :, : bucket.blocks]
        inputs[own, HEADER + bucket.tokens :] = tables.reshape(count, -1)
        for index in (~step.on_device).nonzero()[0].tolist():
            start, new = int(step.starts[index]), int(step.counts[index])
            tokens = step.sequences[index].tokens[start : start + new]
            inputs[step.rows[index], HEADER : HEADER + new] = tokens
        self._last_inputs = inputs
        return inputs

    def _settings_of(self, step: Step) -> tuple[Settings, int]:
        """The settings of a step's rows, and the index of the program that draws for them."""
        settings, variant = self._last_settings
        if step.again and len(settings.slots) == step.bucket.rows:
            drawn = settings.slots != self._settings.padding
            settings = settings._replace(numbers=settings.numbers + drawn)
        else:
            settings, variant = self._look_up_settings(step)
        self._last_settings = settings, variant
        return settings, variant

    def _look_up_settings(self, step: Step) -> tuple[Settings, int]:
        """Looks up the settings of a step's rows, and the index of their program."""
        places = np.full(step.bucket.rows, self._settings.padding)
        places[step.rows] = np.where(step.samples, step.slots, self._settings.padding)
        variant = int(self._settings.variant[places].max())
        numbers = np.zeros(step.bucket.rows, np.int32)
        prompts = self._settings.prompt_length[step.slots]
        numbers[step.rows] = step.starts + step.counts - prompts
        return self._settings.rows(places, numbers), variant

    def _draw(self, step: Step, logits: jax.Array) -> Drawn:
        settings, variant = self._settings_of(step)
        mask = self._mask(step, np.asarray(settings.numbers)) if VARIANTS[variant].masks else None
        drawn: Drawn
        drawn, self._state = self._program((variant, step.bucket.rows))(
            logits, self._state, settings, mask
        )
        return drawn

    def _mask(self, step: Step, numbers: np.ndarray) -> np.ndarray:
        """What may follow in each row, whose answers have `numbers` [R] tokens."""
        mask: np.ndarray = self._allowed[(numbers == 0).astype(np.intp)]
        for index, sequence in enumerate(step.sequences):
            grammar = sequence.request.grammar if sequence.request else None
            if grammar is not None and step.samples[index]:
                mask[step.rows[index]] = grammar.mask()
        return mask


def _following(step: Step) -> np.ndarray:
    """The token that follows each new one, int32 [R, T]; zeros where none is known."""
    following = np.zeros((step.bucket.rows, step.bucket.tokens), np.int32)
    for index, sequence in enumerate(step.sequences):
        start = 1 + int(step.starts[index])
        tokens = sequence.tokens[start : start + int(step.counts[index])]
        following[step.rows[index], : len(tokens)] = tokens
    return following
