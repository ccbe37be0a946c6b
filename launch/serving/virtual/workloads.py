"""A step of serving as shapes, for `neuronjax estimate` and `sweep`: nothing here allocates."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from launch.quantisation.settings import WEIGHTS
from launch.serving.copies import cache_split
from launch.serving.runner.arrays import HEADER, forward
from launch.workloads import MODELS, model_config
from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder
from models.layers.narrow import Storage, kernel_paths, make_narrow
from models.layers.paged_cache import Pages
from models.parallel.paged_split import with_paged_split
from models.parallel.row_split import RowSplit
from models.parameters import axis_names_of, split
from models.sharding import parameter_shardings


def serving_step(
    mesh: AbstractMesh,
    *,
    batch: int = 1,
    model: str = "70b",
    tokens: int = 1,
    context: int = 4096,
    block_size: int = 32,
    blocks: int = 2048,
    dtype: str = "bfloat16",
    weights: str | None = None,
    cache_dtype: str | None = None,
    layers: int | None = None,
) -> dict[str, Any]:
    """The step of the bucket of `batch` rows with `tokens` new tokens each, which look at up to
    `context` tokens in a cache of `blocks` blocks, shared as the mesh says (`kv_replica`,
    `attention_data`); each row's likeliest token is drawn. `weights`
    is a name of `launch.quantisation`, for linear maps with narrow weights."""
    config = model_config(model, mesh, layers, max_seq_len=context, dtype=dtype, param_dtype=dtype)
    storage = None if weights is None else WEIGHTS[weights]
    graph, parameters = split(nnx.eval_shape(lambda: _decoder(config, storage)))
    shardings = parameter_shardings(mesh, parameters, axis_names_of(graph, parameters))
    shared, groups = cache_split(mesh), mesh.shape.get(RowSplit.axis, 1)
    if shared is not None:
        graph = with_paged_split(graph, parameters, shared)

    def array(shape: tuple[int, ...], dtype: Any, *spec: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def step(parameters: Any, pages: Any, last: jax.Array, inputs: jax.Array) -> Any:
        logits, _, pages = partial(forward, graph, tokens, False)(parameters, pages, last, inputs)
        return jnp.argmax(logits, axis=-1).astype(jnp.int32), pages

    shape = (blocks + groups, block_size, config.num_kv_heads, config.head_dim)
    spec = PartitionSpec(None, None, "model") if shared is None else shared.pages
    pages = array(shape, cache_dtype or dtype, *spec)
    width = HEADER + tokens + -(-context // block_size)
    return {
        "fn": jax.jit(step, donate_argnums=1),
        "arguments": (
            {
                name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=shardings[name])
                for name, leaf in parameters.items()
            },
            [Pages(pages, pages)] * config.num_layers,
            array((batch + 1,), jnp.int32),
            array((batch, width), jnp.int32),
        ),
        "tokens": batch * tokens,
        "samples": batch,
        "layers": MODELS[model].num_layers,
    }


def _decoder(config: DecoderConfig, storage: Storage | None) -> Decoder:
    model = Decoder(config, rngs=nnx.Rngs(0))
    if storage is not None:
        make_narrow(model, storage, kernel_paths(model))
    return model
