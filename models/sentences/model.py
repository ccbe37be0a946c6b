"""The vectors of a text's tokens become its own.

Axis names: R texts, T tokens, D model width, V width of the result.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, SingleDeviceSharding

from models.draws import Draws
from models.layers.activations import activation
from models.layers.factory import LayerFactory
from models.parameters import Parameters, axis_names_of, split_abstract
from models.sentences.config import Dense, Module, Pool, Splade
from models.sentences.pooling import POOL, of_words
from models.sharding import parameter_shardings
from models.weights.directory import open_tensors
from models.weights.load import load_parameters
from models.weights.rows import dense_rows
from models.weights.safetensors import StoredTensor
from models.weights.table import KeyTable


class SentenceHead(nnx.Module):
    """Pooling, dense layers and normalisation, in the order of the modules; FP32."""

    def __init__(self, modules: Sequence[Module], *, param_dtype: str, rngs: nnx.Rngs) -> None:
        self.modules = tuple(modules)
        make = LayerFactory(0.02, param_dtype, rngs)
        self.dense = nnx.List(
            [
                make.dense({"dim": m.in_dim}, {"features": m.out_dim}, bias=m.bias)
                for m in _dense(modules)
            ]
        )

    def __call__(self, hidden: jax.Array, real: jax.Array) -> jax.Array:
        """Vectors FP32 [R, V] of those of tokens [R, T, D]; real bool [R, T] is False at padding,
        which stands behind the text."""
        x, dense = hidden.astype(jnp.float32), iter(self.dense)
        for module in self.modules:
            if isinstance(module, Pool):
                x = jnp.concatenate([POOL[mode](x, real) for mode in module.modes], axis=-1)
            elif isinstance(module, Dense):
                x = activation(module.act)(next(dense)(x))
            elif isinstance(module, Splade):
                x = of_words(x, real, adds=module.adds, twice=module.twice)
            else:
                x = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
        return x


class LoadedHead(NamedTuple):
    """A SentenceHead and its weights."""

    graph: nnx.GraphDef[Any]
    parameters: Parameters


def key_table(modules: Sequence[Module]) -> KeyTable:
    """The table of tensors by their folder and name."""
    return KeyTable(
        tuple(
            row
            for number, module in enumerate(_dense(modules))
            for row in dense_rows(f"{module.folder}/linear", f"dense.{number}")
        )
    )


def load_head(
    directory: Path, modules: Sequence[Module], param_dtype: str, mesh: Mesh | None = None
) -> LoadedHead:
    """The head of a directory, its weights sharded over the mesh or on the first device.

    Raises WeightsError for files that do not suit the modules.
    """
    graph, abstract = split_abstract(
        lambda: SentenceHead(modules, param_dtype=param_dtype, rngs=Draws(0))
    )
    tensors: dict[str, StoredTensor] = {
        f"{module.folder}/{name}": tensor
        for module in _dense(modules)
        for name, tensor in open_tensors(directory / module.folder).items()
    }
    if not tensors:
        return LoadedHead(graph, abstract)
    shardings = (
        dict.fromkeys(abstract, SingleDeviceSharding(jax.devices()[0]))
        if mesh is None
        else parameter_shardings(mesh, abstract, axis_names_of(graph, abstract))
    )
    return LoadedHead(graph, load_parameters(tensors, key_table(modules), abstract, shardings))


def _dense(modules: Sequence[Module]) -> list[Dense]:
    return [module for module in modules if isinstance(module, Dense)]
