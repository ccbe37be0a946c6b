"""A smaller model with the same vocabulary guesses (Leviathan et al., "Fast Inference from
Transformers via Speculative Decoding", 2023).

Its cache has the blocks of the model's own: what block tables say holds for both.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.serving.runner.arrays import HEADER, forward, make_pages, shapes_of
from launch.serving.runner.meter import Meter
from launch.serving.sampling.draw import Settings, settings_shapes, stateless_draw
from launch.serving.sampling.variants import SAMPLED
from launch.serving.scheduler.buckets import Bucket
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.steps import Step
from models.layers.paged_cache import Rows
from models.parameters import merge


class DraftModel:
    """Follows every step, and draws guesses one after the other in one program."""

    reads_all_outputs = False

    def __init__(
        self,
        graph: nnx.GraphDef[Any],
        parameters: Mapping[str, jax.Array],
        mesh: Mesh,
        limits: SchedulerLimits,
    ) -> None:
        self.guesses, self.meter = limits.guesses, Meter()
        self._graph, self._parameters, self._limits = graph, parameters, limits
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._pages = make_pages(graph, parameters, mesh, limits.blocks + 1, limits.block_size)
        self._compiled: dict[Any, Any] = {}

    def compile_all(self) -> Iterator[Any]:
        """Programs to follow steps, and those that guess."""
        for bucket in self._limits.buckets:
            yield self._get((bucket, False))
            if bucket.tokens == 1:
                yield self._get((bucket, True))

    def worth_guessing(self, sequence: Sequence) -> bool:
        """True: a draft model has a guess for every text."""
        return True

    def observe(self, step: Step, inputs: np.ndarray, last: jax.Array, outputs: jax.Array) -> None:
        """Reads the tokens of a step with the draft model, too."""
        if step.is_decode and not any(sequence.speculates for sequence in step.sequences):
            return
        program = self._count_program((step.bucket, False))
        self._pages = program(self._parameters, self._pages, last, inputs)

    def propose(self, step: Step, inputs: np.ndarray, settings: Settings) -> jax.Array:
        """The guesses of the draft model, on the device."""
        program = self._count_program((step.bucket._replace(tokens=1), True))
        guesses, self._pages = program(self._parameters, self._pages, inputs, settings)
        return guesses

    def verified(
        self, step: Step, inputs: np.ndarray, guesses: Any, tokens: jax.Array, outputs: jax.Array
    ) -> None:
        """What it has read of wrong guesses is overwritten before it looks at it again."""

    def _count_program(self, key: tuple[Bucket, bool]) -> Any:
        """A program that is run."""
        program = self._get(key)
        self.meter.count(key, program)
        return program

    def _get(self, key: tuple[Bucket, bool]) -> Any:
        program = self._compiled.get(key)
        if program is None:
            program = self._compiled[key] = self._compile(*key)
        return program

    def _compile(self, bucket: Bucket, guesses: bool) -> Any:
        pages = jax.tree.map(lambda leaf: leaf.sharding, self._pages)
        width = HEADER + bucket.tokens + bucket.blocks
        inputs = self._array((bucket.rows, width), np.int32)
        if guesses:
            settings = settings_shapes(bucket.rows, self._replicated)
            return (
                jax.jit(
                    partial(guess, self._graph, self.guesses),
                    donate_argnums=1,
                    out_shardings=(self._replicated, pages),
                )
                .lower(shapes_of(self._parameters), shapes_of(self._pages), inputs, settings)
                .compile()
            )
        last = self._array((self._limits.slots + 1,), np.int32)

        def follow(parameters: Any, pages: Any, last: jax.Array, inputs: jax.Array) -> Any:
            return forward(self._graph, bucket.tokens, False, parameters, pages, last, inputs)[2]

        return (
            jax.jit(follow, donate_argnums=1, out_shardings=pages)
            .lower(shapes_of(self._parameters), shapes_of(self._pages), last, inputs)
            .compile()
        )

    def _array(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._replicated)


def guess(
    graph: nnx.GraphDef[Any],
    guesses: int,
    parameters: Mapping[str, jax.Array],
    pages: Any,
    inputs: jax.Array,
    settings: Settings,
) -> tuple[jax.Array, Any]:
    """Tokens int32 [R, K] after the first one of each row, and the pages with all of them.

    The last guess is read too, so that nothing is missing if all are right.
    """
    start, count = inputs[:, 0], inputs[:, 1]
    token, tables = inputs[:, HEADER], inputs[:, HEADER + 1 :]
    model = merge(graph, parameters)

    def step(carry: tuple[jax.Array, Any], index: jax.Array) -> tuple[Any, jax.Array]:
        token, pages = carry
        rows = Rows(tables, start + index, (index < count).astype(jnp.int32))
        outputs, pages = model.extend_pages(token[:, None], pages, rows)
        place = settings._replace(numbers=settings.numbers + index)
        token = stateless_draw(SAMPLED, model.logits_of(outputs), place)
        return (token, pages), token

    (_, pages), tokens = jax.lax.scan(step, (token, pages), jnp.arange(guesses + 1))
    return tokens[:guesses].T, pages
