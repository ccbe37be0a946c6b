"""A head that guesses a decoder's next output from its last one (Li et al., "EAGLE", 2024).

One block of a decoder on fc([embedding of a token; the decoder's output before that token]). What
it gives stands for the decoder's output after the token: the decoder's own head makes logits of it,
and it is what the next guess starts from.

Axis names: R rows, T positions, D model width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from models.decoder.config import DecoderConfig
from models.decoder.model import Block, Decoder, Positions
from models.decoder.weights import LLAMA, LLAMA_LAYOUT
from models.errors import ConfigError
from models.layers.cache import KVCache
from models.layers.factory import LayerFactory
from models.layers.masks import causal_mask
from models.layers.paged_cache import PagedCache, Pages, Rows
from models.layers.rotary import turn
from models.parameters import Parameters, axis_names_of, split_abstract
from models.pretrained import describe
from models.sharding import parameter_shardings
from models.weights.directory import open_tensors
from models.weights.load import load_parameters
from models.weights.table import KeyTable, row
from models.weights.transforms import KERNEL

EAGLE_KEYS = KeyTable(
    (row("fc.weight", "fc.kernel", KERNEL), row("fc.bias", "fc.bias"), *LLAMA),
    LLAMA_LAYOUT.renames,
    (r"(model\.)?embed_tokens\.weight", r"lm_head\.weight", r".*\.rotary_emb\.inv_freq"),
)
# Parameters that are the decoder's own.
_SHARED = ("embedding.", "position_embedding.", "head.", "head_bias", "norm.")
_ENDS = "ends."


class EagleShape(NamedTuple):
    """What a checkpoint has beyond its config."""

    fc_bias: bool = False
    input_norm: bool = False  # the original has no norm before attention


PAPER = EagleShape()


class Eagle(nnx.Module):
    """Tokens and the outputs before them -> what the decoder's outputs may be after them.

    The first token of a text has no output before it: nothing looks at it.
    """

    def __init__(
        self,
        config: DecoderConfig,
        decoder: DecoderConfig,
        shape: EagleShape = PAPER,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.config = config
        self.ends = Decoder(replace(decoder, num_layers=1), rngs=rngs)  # embedding and head
        self.ends.blocks = nnx.List([])
        wide, narrow = {"residual": 2 * config.dim}, {"residual": config.dim}
        self.fc = LayerFactory.of(config, rngs).dense(wide, narrow, bias=shape.fc_bias)
        block = Block(config, 0, rngs=rngs)
        if not shape.input_norm:
            del block.attention_norm
            block.attention_norm = nnx.identity
        self.blocks = nnx.List([block])

    def __call__(self, tokens: jax.Array, outputs: jax.Array) -> jax.Array:
        """The outputs [R, T, D] after tokens [R, T] of whole texts, each made of the decoder's
        outputs [R, T, D] before it."""
        rows, length = tokens.shape
        before = jnp.pad(outputs[:, :-1], ((0, 0), (1, 0), (0, 0)))
        config = self.config
        empty = KVCache.empty(rows, length, config.num_kv_heads, config.head_dim, config.dtype)
        slots = jnp.arange(length)
        return self._run(tokens, before, empty, slots, slots)[0]

    def extend_pages(
        self, tokens: jax.Array, before: jax.Array, pages: Pages, rows: Rows
    ) -> tuple[jax.Array, Pages]:
        """The outputs [R, T, D] after new tokens [R, T] with the outputs `before` them [R, T, D],
        and the pages with their keys and values."""
        key_slots = jnp.arange(rows.tables.shape[1] * pages.keys.shape[1])
        slots = rows.positions(tokens.shape[1])
        cache = PagedCache(pages, rows)
        x, cache = self._run(tokens, before, cache, slots, key_slots)
        return x, cache.pages

    def init_pages(self, blocks: int, block_size: int, dtype: Any = None) -> list[Pages]:
        """Empty pages of its block."""
        heads = self.config.num_kv_heads, self.config.head_dim
        return [Pages.empty(blocks, block_size, *heads, dtype or self.config.dtype)]

    def logits_of(self, x: jax.Array) -> jax.Array:
        """Logits [R, V] in FP32 of outputs [R, D], by the decoder's head."""
        return self.ends.logits_of(x)

    def _run(
        self, tokens: jax.Array, before: jax.Array, cache: Any, slots: jax.Array, keys: jax.Array
    ) -> tuple[jax.Array, Any]:
        (block,), rotary = self.blocks, self.config.layer_rotary(0)
        mask = causal_mask(slots, keys, window=block.window) & (keys > 0)
        turns = {} if rotary is None else {rotary: turn(slots, self.config.head_dim, rotary, None)}
        where = Positions({block.window: mask}, turns, slots)
        x = self.fc(jnp.concatenate([self.ends.embed(tokens, where), before], axis=-1))
        return block(x, where, cache, 0 if slots.ndim == 1 else slots[:, 0])


def make_eagle(
    config: DecoderConfig, decoder: DecoderConfig, shape: EagleShape = PAPER
) -> tuple[nnx.GraphDef[Any], Parameters]:
    """A head for a decoder, and its own parameters as jax.ShapeDtypeStruct: without the decoder's,
    which `with_ends` adds. Raises ConfigError if their widths differ."""
    graph, abstract = _abstract(config, decoder, shape)
    return graph, _own(abstract)


def _abstract(
    config: DecoderConfig, decoder: DecoderConfig, shape: EagleShape
) -> tuple[nnx.GraphDef[Any], Parameters]:
    """The head of `make_eagle`, and its parameters with the decoder's."""
    if config.dim != decoder.dim:
        raise ConfigError(
            f"the EAGLE head has a width of {config.dim}, but the decoder has {decoder.dim}. The "
            "head was made for another model."
        )
    config = replace(
        config, num_layers=1, dtype=decoder.dtype, param_dtype=decoder.param_dtype, experts=None
    )
    return split_abstract(lambda: Eagle(config, decoder, shape, rngs=nnx.Rngs(0)))


def _own(parameters: Mapping[str, Any]) -> Parameters:
    return {name: leaf for name, leaf in parameters.items() if not name.startswith(_ENDS)}


def with_ends(
    parameters: Mapping[str, jax.Array], decoder: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """All that `merge` needs: a head's parameters, and the ends of its decoder, not copied."""
    ends = {_ENDS + name: leaf for name, leaf in decoder.items() if name.startswith(_SHARED)}
    return {**ends, **parameters}


def load_eagle(
    directory: Path, decoder: DecoderConfig, mesh: Mesh
) -> tuple[nnx.GraphDef[Any], Parameters]:
    """The head of a directory with config.json and safetensors, and its own parameters.

    Tensors are those of the paper's code: `fc.weight` [D, 2D], `layers.0.*`; an embedding or a
    head in the files is not read. Raises ConfigError, WeightsError or ShardingError.
    """
    config = describe(directory).config
    if not isinstance(config, DecoderConfig):
        raise ConfigError(f"the EAGLE head in {directory} is not a decoder block")
    tensors = open_tensors(directory)
    names = {EAGLE_KEYS.canonical(name) for name in tensors}
    shape = EagleShape("fc.bias" in names, "model.layers.0.input_layernorm.weight" in names)
    graph, everything = _abstract(config, decoder, shape)
    abstract = _own(everything)
    shardings = parameter_shardings(mesh, abstract, axis_names_of(graph, everything))
    return graph, load_parameters(tensors, EAGLE_KEYS, abstract, shardings)
