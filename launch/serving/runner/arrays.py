"""What runs on the device in a step, as functions of arrays.

Axis names: R rows, T new tokens of a row, K guesses, C blocks of a row, S slots, D model width,
V vocabulary.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.serving.sampling.draw import logprobs_of
from models.layers.encoder_decoder import TargetPages
from models.layers.low_rank import choose_adapters
from models.layers.paged_cache import Pages, Rows, last_outputs
from models.parallel.paged_split import PagedSplit
from models.parameters import merge

# Columns of a step's input before its tokens: start, count, slot, token on the device, adapter.
HEADER = 5
_SCORED_AT_ONCE = 64  # tokens whose logits are in memory at the same time


class PagedDecoder(Protocol):
    """What serving needs of a model."""

    def extend_pages(
        self, tokens: jax.Array, pages: Any, rows: Rows, *, whole: bool = False
    ) -> tuple[jax.Array, Any]:
        """The output [R, D] after the last new token of every row, or those after all of them
        [R, T, D], and the extended pages."""

    def logits_of(self, x: jax.Array) -> jax.Array:
        """Logits [R, V] of outputs [R, D]."""

    def init_pages(self, blocks: int, block_size: int, dtype: Any = None) -> list[Pages]:
        """Empty pages, in the model's dtype if none is given."""


class Sources(Protocol):
    """What models have read of sources, in places."""

    def put(self, places: jax.Array, source: Any, lengths: jax.Array) -> Any:
        """The places with sources of so many positions, int32 [B], in those int32 [B]."""

    def copied(self, begin: jax.Array, end: jax.Array) -> Any:
        """The places with the source of the place `begin` in the place `end`, too."""


class SourceReader(Protocol):
    """What serving needs of a model that looks at more than its text."""

    def read(self, source: jax.Array, length: jax.Array) -> Any:
        """What the model looks at of a source of `length` [1] positions [S, …], padded."""

    def init_sources(self, places: int, length: int) -> Sources:
        """Empty places, as many as asked for, of sources of up to `length` positions."""


def forward(
    graph: nnx.GraphDef[Any],
    tokens_per_row: int,
    whole: bool,
    parameters: Mapping[str, jax.Array],
    pages: Any,
    last: jax.Array,
    inputs: jax.Array,
) -> tuple[jax.Array, jax.Array, Any]:
    """Logits [R, V] and the model's output [R, D] after each row, and the pages with its tokens;
    with `whole` the outputs [R, T, D] after every token.

    last int32 [S + 1]: the tokens that were drawn last. inputs int32 [R, HEADER + T + C]: see
    HEADER, then tokens and block table.
    """
    new = new_tokens(inputs, tokens_per_row, last)
    model, outputs, pages = _extend_pages(graph, parameters, pages, inputs, new, whole)
    return model.logits_of(last_outputs(outputs, new[1]) if whole else outputs), outputs, pages


class Scores(NamedTuple):
    """What the model says of tokens that are known."""

    logprobs: jax.Array  # FP32 [R, T]: of the token that follows each one
    top_tokens: jax.Array  # int32 [R, T, 20]: the likeliest first
    top_logprobs: jax.Array  # FP32 [R, T, 20]
    ranks: jax.Array  # int32 [R, T]: of the token that follows each one; 1 is the likeliest


def forward_scored(
    graph: nnx.GraphDef[Any],
    tokens_per_row: int,
    whole: bool,
    parameters: Mapping[str, jax.Array],
    pages: Any,
    last: jax.Array,
    inputs: jax.Array,
    following: jax.Array,
) -> tuple[jax.Array, jax.Array, Any, Scores]:
    """The results of `forward`, and the scores of the tokens int32 [R, T] that follow each new
    one."""
    tokens, rows = new = new_tokens(inputs, tokens_per_row, last)
    model, outputs, pages = _extend_pages(graph, parameters, pages, inputs, new, whole=True)

    def score(place: tuple[jax.Array, jax.Array]) -> Scores:
        output, token = place
        logits = model.logits_of(output[None])
        likelier = jnp.sum(logits > logits[:, token], -1, jnp.int32)
        return Scores(*logprobs_of(logits, token[None]), 1 + likelier)

    flat = outputs.reshape(-1, outputs.shape[2]), following.reshape(-1)
    scores = jax.lax.map(score, flat, batch_size=_SCORED_AT_ONCE)
    scores = jax.tree.map(lambda leaf: leaf.reshape(*tokens.shape, *leaf.shape[2:]), scores)
    last_of_rows = last_outputs(outputs, rows)
    logits = model.logits_of(last_of_rows)
    return logits, outputs if whole else last_of_rows, pages, scores


def new_tokens(inputs: jax.Array, tokens_per_row: int, last: jax.Array) -> tuple[jax.Array, Rows]:
    """The tokens [R, T] of a step, from arguments of `forward`, and where they stand."""
    start, count, slot, on_device, _ = inputs[:, :HEADER].T
    tokens, tables = jnp.split(inputs[:, HEADER:], [tokens_per_row], axis=1)
    tokens = jnp.where((on_device == 1)[:, None], last[slot][:, None], tokens)
    return tokens, Rows(tables, start, count, slot)


def forward_guesses(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    pages: list[Pages],
    inputs: jax.Array,
    guesses: jax.Array,
) -> tuple[jax.Array, jax.Array, list[Pages]]:
    """Logits [R · (1 + K), V] and outputs [R, 1 + K, D] after each token, and the pages.

    The first token of each row stands in inputs int32 [R, HEADER + 1 + C], the others in guesses
    int32 [R, K].
    """
    tokens = jnp.concatenate([inputs[:, HEADER : HEADER + 1], guesses], axis=1)
    rows = Rows(inputs[:, HEADER + 1 :], inputs[:, 0], inputs[:, 1])
    model, outputs, pages = _extend_pages(graph, parameters, pages, inputs, (tokens, rows), True)
    return model.logits_of(outputs.reshape(-1, outputs.shape[2])), outputs, pages


def _extend_pages(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    pages: Any,
    inputs: jax.Array,
    new: tuple[jax.Array, Rows],
    whole: bool,
) -> tuple[PagedDecoder, jax.Array, Any]:
    """The model with the adapters of the rows, its outputs after new tokens [R, T], and the pages
    with those."""
    module = merge(graph, parameters)
    choose_adapters(module, inputs[:, HEADER - 1])
    model: PagedDecoder = module
    tokens, rows = new
    outputs, pages = model.extend_pages(tokens, pages, rows, whole=whole)
    return model, outputs, pages


def make_pages(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    mesh: Mesh,
    blocks: int,
    block_size: int,
    dtype: str | None = None,
    split: PagedSplit | None = None,
    sources: tuple[int, int] | None = None,
) -> Any:
    """Empty pages on the mesh, in the model's dtype unless another is given; key-value heads are
    split over its axis `model` unless told otherwise. `sources`: how many there are beside them,
    and how many positions the longest has."""
    heads = "model" if "model" in mesh.axis_names else None
    pages = PartitionSpec(None, None, heads, None) if split is None else split.pages
    by_axes = {
        4: NamedSharding(mesh, pages),
        5: NamedSharding(mesh, PartitionSpec(None, *pages)),  # of layers that run as one
    }

    def empty() -> Any:
        model = merge(graph, parameters)
        pages = model.init_pages(blocks, block_size, dtype)
        return pages if sources is None else TargetPages(pages, model.init_sources(*sources))

    replicated = NamedSharding(mesh, PartitionSpec())
    shardings = jax.tree.map(lambda leaf: by_axes.get(leaf.ndim, replicated), jax.eval_shape(empty))
    return jax.jit(empty, out_shardings=shardings)()


def read_source(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    pages: TargetPages,
    where: jax.Array,
    source: jax.Array,
) -> TargetPages:
    """The pages with a source in its place. where int32 [2]: the place, and how long the source
    [S, …] is without its padding."""
    model: SourceReader = merge(graph, parameters)
    place, length = where[:1], where[1:]
    return pages._replace(sources=pages.sources.put(place, model.read(source, length), length))


def copy_source(pages: TargetPages, where: jax.Array) -> TargetPages:
    """The pages with the source of one place in another, too; where int32 [2]: from, to."""
    return pages._replace(sources=pages.sources.copied(where[0], where[1]))


def read_blocks(pages: Any, blocks: jax.Array) -> Any:
    """The contents [M, …] of these blocks [M] in all pages."""
    return jax.tree.map(lambda leaf: leaf[blocks], pages)


def write_blocks(pages: Any, blocks: jax.Array, values: Any) -> Any:
    """The pages with other values [M, …] in these blocks [M]."""
    return jax.tree.map(lambda leaf, new: leaf.at[blocks].set(new), pages, values)


def shapes_of(tree: Any) -> Any:
    """The arrays of a tree as shapes with their shardings."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree
    )
