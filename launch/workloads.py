"""Steps of Llamas as shapes, for estimates of time and memory: nothing here allocates.

Each function returns what `neuronjax estimate` asks for: the jitted function, its arguments as
`jax.ShapeDtypeStruct` with shardings, what a call processes, and the layers of the whole model. Key
and value heads are repeated until there is one for each part of the mesh's axis `model`, as NxD
does it for groups of queries that are larger than that.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from launch.config import TrainConfig
from launch.errors import SettingsError
from launch.source import byte_level
from launch.training.objectives import text_batch
from launch.training.optimizers import make_optimizer
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS
from launch.training.schedules import make_schedule
from launch.training.step import KINDS, make_training
from models import pretrained
from models.decoder.config import DecoderConfig
from models.decoder.flops import forward_flops, training_flops
from models.decoder.model import Decoder
from models.decoder.padding import padded, padding_of, repeat_kv_heads
from models.layers.cache import KVCache
from models.parameters import axis_names_of, merge, split_abstract
from models.sharding import batch_spec, parameter_shardings

MODELS: Mapping[str, DecoderConfig] = {
    name: pretrained.config(f"meta-llama/{published}")
    for name, published in (
        ("1b", "Llama-3.2-1B"),
        ("8b", "Meta-Llama-3-8B"),
        ("70b", "Meta-Llama-3-70B"),
    )
}


_RECIPES = {"bfloat16": "mixed_precision", "float32": "fp32"}
"""Dtype of the layers -> precision recipe."""


def model_config(
    model: str, mesh: AbstractMesh, layers: int | None, *, pad: bool = False, **changes: Any
) -> DecoderConfig:
    """A model with so many layers whose key/value heads the mesh can split; with `pad`, everything
    else, too."""
    if model not in MODELS:
        raise SettingsError(f"model={model!r} is unknown; choose one of {', '.join(MODELS)}.")
    config = repeat_kv_heads(MODELS[model], mesh.shape)
    config = replace(config, num_layers=layers or config.num_layers, **changes)
    return padded(config, mesh.shape) if pad else config


def llama_decode(
    mesh: AbstractMesh,
    *,
    model: str = "70b",
    batch: int = 1,
    context: int = 4096,
    dtype: str = "bfloat16",
    layers: int | None = None,
    pad: bool = False,
) -> dict[str, Any]:
    """A step of decoding a token for each of `batch` sequences with caches of `context` slots."""
    config = model_config(
        model, mesh, layers, pad=pad, max_seq_len=context, dtype=dtype, param_dtype=dtype
    )
    graph, parameters = split_abstract(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    shardings = parameter_shardings(mesh, parameters, axis_names_of(graph, parameters))
    rows = batch_spec(mesh.axis_names, rank=1)[0]

    def array(shape: tuple[int, ...], dtype: Any, *spec: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    slots = array(
        (batch, context, config.num_kv_heads, config.head_dim), dtype, rows, None, "model"
    )

    def decode(
        params: Any, cache: list[KVCache], tokens: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, list[KVCache]]:
        logits, cache = merge(graph, params).extend(tokens, cache, position)
        return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), cache

    return {
        "fn": jax.jit(decode, donate_argnums=1),
        "arguments": (
            {
                name: jax.ShapeDtypeStruct(
                    parameter.shape, parameter.dtype, sharding=shardings[name]
                )
                for name, parameter in parameters.items()
            },
            [KVCache(slots, slots)] * config.num_layers,
            array((batch, 1), jnp.int32, rows),
            array((), jnp.int32),
        ),
        "kinds": {"params": "weights", "tokens": "inputs", "position": "inputs"},
        "tokens": batch,
        "samples": batch,
        "model_flops": forward_flops(_published_config(model, config), batch, 1, context),
        "assumed": padding_of(MODELS[model], config) if pad else (),
        "layers": MODELS[model].num_layers,
    }


def _published_config(model: str, config: DecoderConfig) -> DecoderConfig:
    """A model as deep as `config`, without what is padded or repeated for a mesh."""
    return replace(MODELS[model], num_layers=config.num_layers)


def llama_train(
    mesh: AbstractMesh,
    *,
    model: str = "8b",
    batch: int | None = None,
    seq_len: int = 4096,
    dtype: str = "bfloat16",
    layers: int | None = None,
    pad: bool = False,
) -> dict[str, Any]:
    """A training step of launch.train: FP32 weights and moments, the layers in `dtype`.

    `batch` counts sequences over all cores; default: one for each part of the axis `data`.
    """
    batch = batch or mesh.shape.get("data", 1)
    config = model_config(model, mesh, layers, pad=pad, max_seq_len=seq_len)
    described = byte_level(config).model
    run = TrainConfig(checkpoint_dir=Path("unused"))
    schedule = make_schedule(run.schedule, run.steps)
    training = make_training(
        described,
        partial(make_optimizer, run.optimizer, schedule),
        Parallelism.of(mesh.shape),
        PRECISIONS[_RECIPES[dtype]],
        mesh=mesh,
        batch=text_batch(batch, seq_len),
        clip_norm=run.clip_norm,
        seed=0,
    )
    return {
        "fn": training.step,
        "arguments": training.arguments,
        "kinds": KINDS,
        "tokens": batch * seq_len,
        "samples": batch,
        "model_flops": training_flops(_published_config(model, config), batch, seq_len),
        "assumed": padding_of(MODELS[model], config) if pad else (),
        "layers": MODELS[model].num_layers,
    }
