"""A model, its cache and a step's arrays as shapes on a mesh."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from launch.serving.adapters.stacks import add_stacks
from launch.serving.copies import cache_split
from launch.serving.runner.arrays import HEADER
from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder
from models.layers.narrow import Storage, kernel_paths, make_narrow
from models.layers.paged_cache import Pages
from models.parallel.paged_split import PagedSplit, with_paged_split
from models.parallel.row_split import RowSplit
from models.parameters import Parameters, axis_names_of, split_abstract
from models.sharding import parameter_shardings


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Shapes of the bucket of `rows` rows with `tokens` new tokens each and `table` blocks."""

    mesh: AbstractMesh
    config: DecoderConfig
    rows: int
    tokens: int
    table: int
    block_size: int
    blocks: int  # of the cache
    storage: Storage | None  # of narrow weights
    cache_dtype: str
    guesses: int
    adapters: int
    lora_rank: int

    @cached_property
    def model(self) -> tuple[nnx.GraphDef[Any], Parameters]:
        """The model's structure and parameters."""
        graph, parameters = split_abstract(self._decoder)
        parameters = self.sharded(graph, parameters)
        if self._split is not None:
            graph = with_paged_split(graph, parameters, self._split)
        return graph, parameters

    def sharded(self, graph: nnx.GraphDef[Any], parameters: Parameters) -> Parameters:
        """Parameters on the mesh."""
        shardings = parameter_shardings(self.mesh, parameters, axis_names_of(graph, parameters))
        return {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=shardings[name])
            for name, leaf in parameters.items()
        }

    def array(self, shape: tuple[int, ...], dtype: Any, *spec: Any) -> jax.ShapeDtypeStruct:
        """An array on the mesh."""
        sharding = NamedSharding(self.mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of what every core has."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def pages_shape(self) -> tuple[int, int, int, int]:
        """The shape of a layer's keys or values."""
        groups = self.mesh.shape.get(RowSplit.axis, 1)
        heads = self.config.num_kv_heads, self.config.head_dim
        return self.blocks + groups, self.block_size, *heads

    @property
    def pages_spec(self) -> PartitionSpec:
        """The partition spec of a layer's keys or values."""
        heads = PartitionSpec(None, None, "model", None)
        return heads if self._split is None else self._split.pages

    @property
    def pages(self) -> list[Pages]:
        """The pages of all layers."""
        pages = self.array(self.pages_shape, self.cache_dtype, *self.pages_spec)
        return [Pages(pages, pages)] * self.config.num_layers

    @property
    def last(self) -> jax.ShapeDtypeStruct:
        """The tokens that were drawn last."""
        return self.array((self.rows + 1,), "int32")

    @property
    def slots(self) -> jax.ShapeDtypeStruct:
        """A number for each row."""
        return self.array((self.rows,), "int32")

    @property
    def inputs(self) -> jax.ShapeDtypeStruct:
        """The inputs of a step."""
        return self.inputs_of(self.tokens)

    def inputs_of(self, tokens: int) -> jax.ShapeDtypeStruct:
        """The inputs of a step in which so many tokens of each row come from the host."""
        return self.array((self.rows, HEADER + tokens + self.table), "int32")

    @property
    def guessed(self) -> jax.ShapeDtypeStruct:
        """The guessed tokens of each row."""
        return self.array((self.rows, self.guesses), "int32")

    @property
    def outputs(self) -> jax.ShapeDtypeStruct:
        """The model's outputs after every token of a step."""
        return self.array((self.rows, self.tokens, self.config.dim), self.config.dtype)

    @property
    def _split(self) -> PagedSplit | None:
        return cache_split(self.mesh)

    def _decoder(self) -> Decoder:
        model = Decoder(self.config, rngs=nnx.Rngs(0))
        if self.storage is not None:
            make_narrow(model, self.storage, kernel_paths(model))
        if self.adapters:
            plain = Decoder(self.config, rngs=nnx.Rngs(0))
            add_stacks(model, plain, self.adapters, self.lora_rank, self.config.dtype)
        return model
