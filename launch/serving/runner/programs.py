"""The programs of the device, compiled ahead for every shape.

Axis names: R rows, T new tokens of a row, C blocks of a row, S slots, V vocabulary.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.serving.requests import MOST_BIASES
from launch.serving.runner.compiling import Compiled
from launch.serving.sampling.draw import FLOATS, Settings, draw
from launch.serving.sampling.state import SamplerState, enter
from launch.serving.sampling.variants import PLAIN, VARIANTS, Variant
from launch.serving.scheduler.buckets import Bucket, Buckets
from models.layers.low_rank import choose_adapters
from models.layers.paged_cache import Pages, Rows
from models.parameters import merge

# Columns of a step's input before its tokens: start, count, slot, token on the device, adapter.
HEADER = 5


class PagedDecoder(Protocol):
    """What serving needs of a model."""

    def extend_pages(
        self, tokens: jax.Array, pages: Any, rows: Rows
    ) -> tuple[jax.Array, list[Pages]]:
        """The output [R, D] after the last new token of every row, and the extended pages."""

    def logits_of(self, x: jax.Array) -> jax.Array:
        """Logits [R, V] of such outputs."""

    def init_pages(self, blocks: int, block_size: int, dtype: Any = None) -> list[Pages]:
        """Empty pages, in the model's dtype if none is given."""


def forward(
    graph: nnx.GraphDef[Any],
    tokens_per_row: int,
    parameters: Mapping[str, jax.Array],
    pages: list[Pages],
    last: jax.Array,
    inputs: jax.Array,
) -> tuple[jax.Array, list[Pages]]:
    """Logits [R, V] after each row, and the pages with its tokens.

    last int32 [S + 1]: the tokens that were drawn last. inputs int32 [R, HEADER + T + C]: see
    HEADER, then tokens and block table.
    """
    start, count, slot, on_device, adapter = inputs[:, :HEADER].T
    tokens, tables = jnp.split(inputs[:, HEADER:], [tokens_per_row], axis=1)
    tokens = jnp.where((on_device == 1)[:, None], last[slot][:, None], tokens)
    module = merge(graph, parameters)
    choose_adapters(module, adapter)
    model: PagedDecoder = module
    outputs, pages = model.extend_pages(tokens, pages, Rows(tables, start, count))
    return model.logits_of(outputs), pages


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
        pages: list[Pages],
        state: SamplerState,
    ) -> None:
        self._graph, self._parameters, self._buckets = graph, parameters, buckets
        self._vocab_size, self._context = vocab_size, context
        self._pages, self._state = _shapes(pages), _shapes(state)
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self.compiled: Compiled[Any] = Compiled(self._compile)

    @property
    def keys(self) -> list[Any]:
        """What there is to compile: buckets, (variant, rows), and "enter"."""
        rows = sorted({*self._buckets.decode_rows, *self._buckets.prefill_rows})
        return [*self._buckets, *((v, r) for v in range(len(VARIANTS)) for r in rows), "enter"]

    @property
    def first_keys(self) -> list[Any]:
        """Enough to answer with: the largest shapes, which do for every step, and draws of their
        rows without frills."""
        buckets = self._buckets
        decode = buckets.decode(buckets.decode_rows[-1], buckets.blocks[-1])
        rows = buckets.rows_of(buckets.chunk)
        prefill = buckets.prefill(rows, buckets.chunk, buckets.blocks[-1])
        rows_drawn = sorted({decode.rows, prefill.rows})
        return [prefill, decode, *((variant, r) for r in rows_drawn for variant in PLAIN)]

    def ready(self, bucket: Bucket) -> Bucket:
        """The bucket, or, as long as it is about to be compiled, the smallest that does, too."""
        return self.compiled.instead(bucket, lambda: self._buckets.larger(bucket))

    def get(self, key: Any) -> Any:
        """The compiled program of a key."""
        return self.compiled.get(key)

    def _compile(self, key: Any) -> Any:
        if isinstance(key, Bucket):
            return self._forward(key)
        if key == "enter":
            return self._enter()
        variant, rows = key
        return self._draw(VARIANTS[variant], rows)

    def _forward(self, bucket: Bucket) -> Any:
        width = HEADER + bucket.tokens + bucket.blocks
        pages = jax.tree.map(lambda leaf: leaf.sharding, self._pages)
        program = jax.jit(
            partial(forward, self._graph, bucket.tokens),
            donate_argnums=1,
            out_shardings=(self._replicated, pages),
        )
        return program.lower(
            _shapes(self._parameters),
            self._pages,
            self._state.last,
            self._array((bucket.rows, width), np.int32),
        ).compile()

    def _draw(self, variant: Variant, rows: int) -> Any:
        settings = Settings(
            self._array((rows,), np.int32),
            self._array((rows,), np.int32),
            self._array((rows, 2), np.uint32),
            self._array((rows,), np.int32),
            self._array((rows, len(FLOATS)), np.float32),
        )
        words = (rows, -(-self._vocab_size // 32))
        mask = self._array(words, np.uint32) if variant.masks else None
        logits = self._array((rows, self._vocab_size), np.float32)
        return (
            self._jit(partial(draw, variant), donate=1)
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


def _shapes(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree
    )
