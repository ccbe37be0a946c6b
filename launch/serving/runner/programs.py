"""The programs of the device, compiled ahead for every shape.

Axis names: R rows, S slots, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.serving.requests import MOST_BIASES
from launch.serving.runner.arrays import (
    HEADER,
    copy_source,
    forward,
    forward_guesses,
    forward_scored,
    read_blocks,
    read_source,
    shapes_of,
    write_blocks,
)
from launch.serving.runner.compiling import Compiled
from launch.serving.sampling.draw import draw, settings_shapes
from launch.serving.sampling.state import SamplerState, enter
from launch.serving.sampling.suppressed import NONE_SUPPRESSED, Suppressed
from launch.serving.sampling.variants import PLAIN, STATELESS, VARIANTS, Variant
from launch.serving.scheduler.buckets import Bucket, Buckets


class Guesses(NamedTuple):
    """The key of the program that checks the guesses of a bucket."""

    bucket: Bucket


@dataclass(frozen=True)
class Scored:
    """The key of the program that also scores a bucket's tokens."""

    bucket: Bucket


READ, WRITE = "read blocks", "write blocks"
"""Keys of the programs that move blocks between caches; compiled when they are needed."""
COPY = "copy a source"
"""Key of the program that lays a source that is there into another place, too."""


class SourceLength(NamedTuple):
    """The key of the program that reads sources of up to so many tokens, or frames."""

    tokens: int


class Programs:
    """Everything that is compiled, for one model, mesh and set of buckets."""

    def __init__(
        self,
        graph: nnx.GraphDef[Any],
        parameters: Mapping[str, jax.Array],
        mesh: Mesh,
        buckets: Buckets,
        *,
        vocab_size: int,
        context: int,
        pages: Any,
        state: SamplerState,
        guesses: int = 0,
        whole_outputs: bool = False,
        tables: int = 1,
        sources: Sequence[int] = (),
        features: int = 0,
        suppressed: Suppressed = NONE_SUPPRESSED,
    ) -> None:
        """A row has so many block tables; an encoder reads sources of these lengths, of tokens or
        of so many features."""
        self._tables, self._sources = tables, [SourceLength(length) for length in sources]
        self._features, self._suppressed = features, suppressed
        self._graph, self._parameters, self._buckets = graph, parameters, buckets
        self._guesses, self._whole_outputs = guesses, whole_outputs
        self._vocab_size, self._context = vocab_size, context
        self._pages, self._state = shapes_of(pages), shapes_of(state)
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self.compiled: Compiled[Any] = Compiled(self._compile)

    @property
    def keys(self) -> list[Any]:
        """What there is to compile: buckets, with guesses and without, (variant, rows), "enter"."""
        rows = sorted({*self._buckets.decode_rows, *self._buckets.prefill_rows})
        drawn = [(variant, r) for variant in range(len(VARIANTS)) for r in rows]
        beside = [*self._sources, COPY] if self._sources else self._scored
        keys = [*self._buckets, *drawn, "enter", *beside]
        if not self._guesses:
            return keys
        width = 1 + self._guesses
        checked = [Guesses(bucket) for bucket in self._buckets.verifying(self._guesses)]
        more = [(v, r * width) for v in range(STATELESS) for r in self._buckets.decode_rows]
        return [*keys, *checked, *(key for key in more if key not in drawn)]

    @property
    def _scored(self) -> list[Scored]:
        """What prompts are scored by, where they are not an encoder's."""
        return [Scored(bucket) for bucket in self._buckets if bucket.tokens > 1]

    @property
    def first_keys(self) -> list[Any]:
        """Enough to answer with: the largest shapes, which do for every step, and draws of their
        rows without frills."""
        buckets = self._buckets
        decode = buckets.decode(buckets.decode_rows[-1], buckets.blocks[-1])
        rows = buckets.rows_of(buckets.chunk)
        prefill = buckets.prefill(rows, buckets.chunk, buckets.blocks[-1])
        rows_drawn = sorted({decode.rows, prefill.rows})
        plain = ((variant, r) for r in rows_drawn for variant in PLAIN)
        return [prefill, decode, *self._sources[-1:], *plain]

    def ready(self, bucket: Bucket) -> Bucket:
        """The bucket, or, as long as it is about to be compiled, the smallest that does, too."""
        return self.compiled.instead(bucket, lambda: self._buckets.larger(bucket))

    def ready_to_score(self, bucket: Bucket) -> Bucket:
        """The bucket of a step whose tokens are scored, or, as long as it is about to be compiled,
        the smallest that does, too."""
        key: Scored = self.compiled.instead(
            Scored(bucket), lambda: list(map(Scored, self._buckets.larger(bucket)))
        )
        return key.bucket

    def for_source(self, length: int) -> SourceLength:
        """The key of the smallest program for a source, or, as long as that is about to be
        compiled, of the smallest that does, too."""
        fitting = [key for key in self._sources if key.tokens >= length]
        key: SourceLength = self.compiled.instead(fitting[0], lambda: fitting)
        return key

    def get(self, key: Any) -> Any:
        """The compiled program of a key."""
        return self.compiled.get(key)

    def _compile(self, key: Any) -> Any:
        if isinstance(key, Bucket):
            return self._forward(key)
        if isinstance(key, Scored):
            return self._score(key.bucket)
        if isinstance(key, Guesses):
            return self._check(key.bucket)
        if isinstance(key, SourceLength):
            return self._read_source(key.tokens)
        if key == "enter":
            return self._enter()
        if key in (READ, WRITE):
            return self._move(key)
        if key == COPY:
            return self._copy_source()
        variant, rows = key
        return self._draw(VARIANTS[variant], rows)

    def _forward(self, bucket: Bucket) -> Any:
        return self._step(bucket, forward)

    def _score(self, bucket: Bucket) -> Any:
        return self._step(
            bucket,
            forward_scored,
            self._array((bucket.rows, bucket.tokens), np.int32),
            results=(self._replicated,),
        )

    def _step(
        self, bucket: Bucket, function: Callable[..., Any], *more: Any, results: Sequence[Any] = ()
    ) -> Any:
        """The program of a bucket, with `more` arguments, and with more `results` of these
        shardings."""
        width = HEADER + bucket.tokens + self._tables * bucket.blocks
        pages = jax.tree.map(lambda leaf: leaf.sharding, self._pages)
        program = jax.jit(
            partial(function, self._graph, bucket.tokens, self._whole_outputs),
            donate_argnums=1,
            out_shardings=(self._replicated, self._replicated, pages, *results),
        )
        return program.lower(
            shapes_of(self._parameters),
            self._pages,
            self._state.last,
            self._array((bucket.rows, width), np.int32),
            *more,
        ).compile()

    def _check(self, bucket: Bucket) -> Any:
        pages = jax.tree.map(lambda leaf: leaf.sharding, self._pages)
        program = jax.jit(
            partial(forward_guesses, self._graph),
            donate_argnums=1,
            out_shardings=(self._replicated, self._replicated, pages),
        )
        return program.lower(
            shapes_of(self._parameters),
            self._pages,
            self._array((bucket.rows, HEADER + 1 + self._tables * bucket.blocks), np.int32),
            self._array((bucket.rows, self._guesses), np.int32),
        ).compile()

    def _read_source(self, tokens: int) -> Any:
        pages = jax.tree.map(lambda leaf: leaf.sharding, self._pages)
        where, source = self._array((2,), np.int32), self._array((tokens,), np.int32)
        if self._features:
            source = self._array((tokens, self._features), np.float32)
        read = jax.jit(
            partial(read_source, self._graph), donate_argnums=1, out_shardings=pages
        ).lower(shapes_of(self._parameters), self._pages, where, source)
        return read.compile()

    def _copy_source(self) -> Any:
        pages = jax.tree.map(lambda leaf: leaf.sharding, self._pages)
        copy = jax.jit(copy_source, donate_argnums=0, out_shardings=pages)
        return copy.lower(self._pages, self._array((2,), np.int32)).compile()

    def _move(self, key: str) -> Any:
        pages = jax.tree.map(lambda leaf: leaf.sharding, self._pages)
        places = self._array((self._tables * self._buckets.blocks[-1],), np.int32)
        if key == READ:
            return jax.jit(read_blocks, out_shardings=pages).lower(self._pages, places).compile()
        values = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (*places.shape, *leaf.shape[1:]), leaf.dtype, sharding=leaf.sharding
            ),
            self._pages,
        )
        write = jax.jit(write_blocks, donate_argnums=0, out_shardings=pages)
        return write.lower(self._pages, places, values).compile()

    def _draw(self, variant: Variant, rows: int) -> Any:
        settings = settings_shapes(rows, self._replicated)
        words = (rows, -(-self._vocab_size // 32))
        mask = self._array(words, np.uint32) if variant.masks else None
        logits = self._array((rows, self._vocab_size), np.float32)
        return (
            self._jit(partial(draw, variant, self._suppressed), donate=1)
            .lower(logits, self._state, settings, mask)
            .compile()
        )

    def _enter(self) -> Any:
        return (
            self._jit(enter, donate=0)
            .lower(
                self._state,
                self._array((3,), np.int32),
                self._array((self._context,), np.int32),
                self._array((MOST_BIASES,), np.int32),
                self._array((MOST_BIASES,), np.float32),
            )
            .compile()
        )

    def _jit(self, function: Callable[..., Any], donate: int) -> Any:
        return jax.jit(function, donate_argnums=donate, out_shardings=self._replicated)

    def _array(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._replicated)
