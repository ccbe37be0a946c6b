"""Decoders whose times are published, as programs of these models: tokens and prompts.

Weights of D4 to D8 are split as their reports say; heads and vocabularies that the cores do not
divide are padded. A prompt is one forward pass with logits of its last token; what the host does
before it is part of the measurements of the benchmark pages alone (`first_token`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from launch.workloads import MODELS
from models import pretrained
from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder
from models.layers.cache import KVCache
from models.layers.linear import Linear
from models.layers.rotary import Rotary
from models.parameters import axis_names_of, merge, split_abstract
from models.sharding import parameter_shardings

Shapes = dict[str, jax.ShapeDtypeStruct]

LLAMA_2_7B = DecoderConfig(
    vocab_size=32_016, num_layers=32, dim=4096, hidden_dim=11_016, num_heads=48, num_kv_heads=48,
    head_dim=128, rotary=Rotary(theta=10_000.0), tie_embeddings=False, dtype="bfloat16",
    param_dtype="bfloat16",
)  # fmt: skip
LLAMA_3_8B = replace(MODELS["8b"], num_kv_heads=32)
LLAMA_3_70B = replace(MODELS["70b"], num_kv_heads=64)


class Scaled(nnx.Module):
    """A linear map whose results are scaled by one number for each output channel."""

    def __init__(self, inner: Linear) -> None:
        self.inner = inner
        _, axes = inner.axes()
        self.scale = nnx.Param(
            jnp.ones(tuple(axes.values()), inner.kernel[...].dtype), axes=tuple(axes)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """What the inner map gives, times the scale."""
        return self.inner(x) * self.scale[...].astype(x.dtype)


def _plain(config: DecoderConfig) -> Decoder:
    return Decoder(config, rngs=nnx.Rngs(0))


def _make_scaled(config: DecoderConfig) -> Decoder:
    model = Decoder(config, rngs=nnx.Rngs(0))
    for block in model.blocks:
        for part in (block.attention, block.mlp):
            for name, layer in list(vars(part).items()):
                if isinstance(layer, Linear):
                    setattr(part, name, Scaled(layer))
    return model


def llama(config: DecoderConfig, mesh: AbstractMesh, int8: bool) -> tuple[Any, Shapes]:
    """The structure, and the sharded weights: those of linear maps as int8 if asked for."""
    make = partial(_make_scaled, config) if int8 else partial(_plain, config)
    graph, weights = split_abstract(make)
    shardings = parameter_shardings(mesh, weights, axis_names_of(graph, weights))
    placed = {}
    for path, weight in weights.items():
        stored = jnp.int8 if path.endswith(".inner.kernel") else weight.dtype
        placed[path] = jax.ShapeDtypeStruct(weight.shape, stored, sharding=shardings[path])
    return graph, placed


def whole(mesh: AbstractMesh, shape: tuple[int, ...], dtype: Any = jnp.int32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))


def llama_token(
    mesh: AbstractMesh,
    *,
    config: DecoderConfig,
    context: int,
    batch: int = 1,
    int8: bool = False,
    layers: int | None = None,
) -> dict[str, Any]:
    """A greedy token for each of `batch` sequences, whose caches have `context` slots."""
    depth = config.num_layers
    config = replace(config, num_layers=layers or depth, max_seq_len=context)
    graph, weights = llama(config, mesh, int8)
    shape = (batch, context, config.num_kv_heads, config.head_dim)
    heads = NamedSharding(mesh, PartitionSpec(None, None, "model"))
    slots = jax.ShapeDtypeStruct(shape, config.dtype, sharding=heads)
    cache = [KVCache(slots, slots)] * config.num_layers

    def decode(weights: Any, cache: Any, tokens: jax.Array, position: jax.Array) -> Any:
        logits, cache = merge(graph, weights).extend(tokens, cache, position)
        return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), cache

    arguments = (weights, cache, whole(mesh, (batch, 1)), whole(mesh, ()))
    return {"fn": jax.jit(decode, donate_argnums=1), "arguments": arguments, "layers": depth}


def llama_prefill(
    mesh: AbstractMesh,
    *,
    config: DecoderConfig,
    length: int,
    int8: bool = False,
    layers: int | None = None,
) -> dict[str, Any]:
    """The first token after a prompt of `length` tokens, and the cache of that prompt."""
    depth = config.num_layers
    config = replace(config, num_layers=layers or depth, max_seq_len=length)
    graph, weights = llama(config, mesh, int8)

    def prefill(weights: Any, tokens: jax.Array) -> Any:
        model = merge(graph, weights)
        logits, cache = model.extend(tokens, model.init_cache(1, length), 0, last=length - 1)
        return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), cache

    return {"fn": prefill, "arguments": (weights, whole(mesh, (1, length))), "layers": depth}


def part(make: Any, target: str, **further: Any) -> dict[str, Any]:
    """A program on a target: `further` has keywords of the function, and those of `validate`."""
    names = ("mesh", "times", "flags", "first_token")
    record = {name: further.pop(name) for name in names if name in further}
    return {"make": make, "target": target, "settings": further, **record}


def measurement(
    name: str, what: str, milliseconds: float, *parts: Any, source: str = "about-neuron/benchmarks"
) -> dict[str, Any]:
    """A row of the table: a published time, and the parts whose times add up to it."""
    return {
        "name": name,
        "what": what,
        "published": 1e6 * milliseconds,
        "source": source,
        "parts": parts,
    }


_TP32: Mapping[str, Any] = {"target": "trn1.32xlarge", "mesh": "model=32", "config": LLAMA_3_8B}
_TP24: Mapping[str, Any] = {"target": "inf2.48xlarge", "mesh": "model=24", "config": LLAMA_2_7B}


_CONTRIB = "neuronx-distributed-inference, contrib/models"
_GEMMA_2B = replace(
    LLAMA_2_7B, vocab_size=256_000, num_layers=18, dim=2048, hidden_dim=16_384, num_heads=8,
    num_kv_heads=1, head_dim=256, tie_embeddings=True, act="gelu_pytorch_tanh", norm_offset=1.0,
)  # fmt: skip
_PHI_3_MINI = replace(
    LLAMA_2_7B, vocab_size=32_064, dim=3072, hidden_dim=8192, num_heads=32, num_kv_heads=32,
    head_dim=96,
)  # fmt: skip
_MINICPM_4_8B = replace(
    LLAMA_2_7B, vocab_size=73_448, hidden_dim=16_384, num_heads=32, num_kv_heads=2
)
_GRANITE_8B = replace(
    LLAMA_2_7B, vocab_size=49_156, num_layers=40, hidden_dim=12_800, num_heads=32, num_kv_heads=8,
    tie_embeddings=True,
)  # fmt: skip
_QWEN_3_06B, _QWEN_3_32B, _MIXTRAL = map(
    pretrained.config, ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-32B", "mistralai/Mixtral-8x7B-v0.1")
)
_MISTRAL_24B = replace(
    LLAMA_2_7B, vocab_size=131_072, num_layers=40, dim=5120, hidden_dim=32_768, num_heads=32,
    num_kv_heads=8,
)  # fmt: skip
_OLMO_2_7B = replace(
    LLAMA_2_7B, vocab_size=100_352, hidden_dim=11_008, num_heads=32, num_kv_heads=32
)

# Name, model, cores, length; milliseconds for a token and for a prompt of that length.
_REPORTED: tuple[tuple[str, str, DecoderConfig, int, int, float, float], ...] = (
    ("D1", "gemma-2b-it", _GEMMA_2B, 1, 512, 20.1, 39.5),
    ("D2", "Phi-3-mini-4k", _PHI_3_MINI, 1, 512, 38.1, 84.0),
    ("D4", "MiniCPM4-8B", _MINICPM_4_8B, 2, 512, 32.1, 100.5),
    ("D5", "granite-3.1-8b", _GRANITE_8B, 2, 128, 32.7, 39.4),
    ("D6", "Qwen3-0.6B", _QWEN_3_06B, 2, 512, 3.57, 14.1),
    ("D7", "Mistral-Small-24B", _MISTRAL_24B, 8, 512, 23.3, 83.9),
    ("D8", "OLMo-2-7B", _OLMO_2_7B, 8, 128, 7.96, 17.5),
)


def _reported() -> tuple[dict[str, Any], ...]:
    """Tokens and prompts of reports beside contributed models, on cores of trn1.32xlarge."""
    rows = []
    for name, model, config, cores, length, token, prompt in _REPORTED:
        where: dict[str, Any] = {"config": config, "mesh": f"model={cores}"}
        what = f"{model} BF16, TP{cores}"
        rows += [
            measurement(
                f"{name} token", f"{what}, a token, context {length}", token,
                part(llama_token, "trn1.32xlarge", context=length, **where), source=_CONTRIB,
            ),
            measurement(
                f"{name} prompt", f"{what}, {length} tokens", prompt,
                part(llama_prefill, "trn1.32xlarge", length=length, **where), source=_CONTRIB,
            ),
        ]  # fmt: skip
    return tuple(rows)


DECODERS: tuple[dict[str, Any], ...] = (
    measurement(
        "M4 prefill", "Llama-3-8B int8, TP32, 128 tokens", 14.75,
        part(llama_prefill, length=128, int8=True, first_token=True, **_TP32),
    ),
    measurement(
        "M4 token", "a token, context 4096", 5.86,
        part(llama_token, context=4096, int8=True, **_TP32),
    ),
    measurement(
        "M5 prefill", "the same, 4096 tokens", 153.0,
        part(llama_prefill, length=4096, int8=True, first_token=True, **_TP32),
    ),
    measurement(
        "M5 token", "a token, context 8192", 7.04,
        part(llama_token, context=8192, int8=True, **_TP32),
    ),
    measurement(
        "M6 prefill", "Llama-2-7B BF16, TP24, 128 tokens", 27.6,
        part(llama_prefill, length=128, first_token=True, **_TP24),
    ),
    measurement(
        "M6 token", "a token, context 4096", 6.47, part(llama_token, context=4096, **_TP24)
    ),
    measurement(
        "M14", "Llama-3.3-70B BF16, TP64, 10,000 tokens", 814.2,
        part(
            llama_prefill, "trn2.48xlarge", config=LLAMA_3_70B, mesh="model=64", length=10_000
        ),
    ),
    *_reported(),
    measurement(
        "D9", "Llama-3.1-8B BF16, TP8, 32 tokens, context 4096", 24.5,
        part(
            llama_token, "inf2.48xlarge", config=MODELS["8b"], mesh="model=8", batch=32,
            context=4096,
        ),
        source="optimum-neuron, benchmark of vLLM",
    ),
    measurement(
        "D10", "Qwen3-32B BF16, TP4, 2 tokens, context 4096", 32.1,
        part(
            llama_token, "trn2.48xlarge", config=replace(_QWEN_3_32B, num_kv_heads=8),
            mesh="model=4", batch=2, context=4096,
        ),
        source="optimum-neuron, benchmark of vLLM",
    ),
    measurement(
        "D11", "Llama-3.3-70B BF16, TP64, a token, context 12,288", 19.75,
        part(
            llama_token, "trn2.48xlarge", config=LLAMA_3_70B, mesh="model=64", context=12_288
        ),
    ),
    measurement(
        "D12", "Mixtral-8x7B BF16, TP8, a token, context 128", 14.8,
        part(llama_token, "trn1.32xlarge", config=_MIXTRAL, mesh="model=8", context=128),
        source=_CONTRIB,
    ),
)  # fmt: skip
"""Measurements of decoders that serve; times in ns, of one core's program."""
