"""Generation, beside the same mathematics written by hand in JAX, without modules or options.

Axis names: T tokens, S cache slots, K key-value heads, G query heads of each, H head width,
D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from launch.benchmarks.paired import Thunk
from models.decoder.config import DecoderConfig
from models.decoder.families import llama_json
from models.generate import generate
from models.parameters import Parameters, split
from models.pretrained import describe_fields
from models.sampling import Sampling
from models.weights.fields import Fields

SMALL = DecoderConfig(
    vocab_size=4096,
    num_layers=8,
    dim=512,
    hidden_dim=1536,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    max_seq_len=1024,
)
PROMPT, NEW = 16, 112  # tokens


class Weights(NamedTuple):
    """The weights of one decoder block."""

    attention_norm: jax.Array  # [D]
    query: jax.Array  # [D, K·G·H]
    key: jax.Array  # [D, K·H]
    value: jax.Array  # [D, K·H]
    output: jax.Array  # [K·G·H, D]
    mlp_norm: jax.Array  # [D]
    gate: jax.Array  # [D, hidden]
    up: jax.Array  # [D, hidden]
    down: jax.Array  # [hidden, D]


class Written(NamedTuple):
    """A decoder without its modules."""

    table: jax.Array  # [V, D]
    blocks: tuple[Weights, ...]
    norm: jax.Array  # [D]


def random_decoder(config: DecoderConfig, device: jax.Device) -> tuple[object, Parameters]:
    """The structure and the weights of a decoder on the device."""
    described = describe_fields(Fields(llama_json(config), "the benchmark"))
    graph, parameters = split(described.architecture.build(described.config))
    return graph, jax.device_put(parameters, device)


def by_hand(parameters: Parameters, config: DecoderConfig) -> Written:
    """The weights of a decoder with tied embeddings as the hand-written loop wants them."""

    def block(i: int) -> Weights:
        def weight(name: str) -> jax.Array:
            return parameters[f"blocks.{i}.{name}"]

        def matrix(name: str) -> jax.Array:
            return weight(f"attention.{name}.kernel").reshape(config.dim, -1)

        return Weights(
            attention_norm=weight("attention_norm.scale"),
            query=matrix("query"),
            key=matrix("key"),
            value=matrix("value"),
            output=weight("attention.output.kernel").reshape(-1, config.dim),
            mlp_norm=weight("mlp_norm.scale"),
            gate=weight("mlp.gate.kernel"),
            up=weight("mlp.up.kernel"),
            down=weight("mlp.down.kernel"),
        )

    blocks = tuple(block(i) for i in range(config.num_layers))
    return Written(parameters["embedding.table"], blocks, parameters["norm.scale"])


@partial(jax.jit, static_argnums=(2, 3))
def written_loop(
    weights: Written, prompt: jax.Array, new_tokens: int, config: DecoderConfig
) -> jax.Array:
    """The most likely tokens [new_tokens] after a prompt [T]: one prefill, then one at a time."""
    length = len(prompt) + new_tokens
    shape = (length, config.num_kv_heads, config.head_dim)
    cache = tuple((jnp.zeros(shape), jnp.zeros(shape)) for _ in weights.blocks)
    rates = config.rotary.theta ** (-jnp.arange(0, config.head_dim, 2) / config.head_dim)
    angles = jnp.arange(length)[:, None] * rates
    cosines, sines = jnp.cos(angles), jnp.sin(angles)

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + config.norm_eps) * scale

    def forward(tokens: jax.Array, cache: tuple, start: jax.Array | int) -> tuple:
        slots = start + jnp.arange(len(tokens))
        seen = slots[:, None] >= jnp.arange(length)
        cosine, sine = cosines[slots][:, None], sines[slots][:, None]

        def turned(x: jax.Array) -> jax.Array:
            low, high = jnp.split(x.reshape(len(tokens), -1, config.head_dim), 2, axis=-1)
            return jnp.concatenate([low * cosine - high * sine, high * cosine + low * sine], -1)

        x, extended = weights.table[tokens], []
        for block, (keys, values) in zip(weights.blocks, cache, strict=True):
            y = norm(x, block.attention_norm)
            query = turned(y @ block.query).reshape(len(tokens), config.num_kv_heads, -1, shape[-1])
            value = (y @ block.value).reshape(-1, *shape[1:])
            keys = jax.lax.dynamic_update_slice_in_dim(keys, turned(y @ block.key), start, 0)
            values = jax.lax.dynamic_update_slice_in_dim(values, value, start, 0)
            extended.append((keys, values))
            scores = jnp.einsum("tkgh,skh->kgts", query, keys) * config.head_dim**-0.5
            shares = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
            mixed = jnp.einsum("kgts,skh->tkgh", shares, values)
            x = x + mixed.reshape(len(tokens), -1) @ block.output
            y = norm(x, block.mlp_norm)
            x = x + (jax.nn.silu(y @ block.gate) * (y @ block.up)) @ block.down
        logits = norm(x[-1], weights.norm) @ weights.table.T
        return jnp.argmax(logits), tuple(extended)

    def step(carry: tuple, slot: jax.Array) -> tuple:
        token, cache = carry
        return forward(token[None], cache, slot), token

    carry = forward(prompt, cache, 0)
    _, tokens = jax.lax.scan(step, carry, len(prompt) + jnp.arange(new_tokens))
    return tokens


def prompt_of(config: DecoderConfig, length: int = PROMPT) -> np.ndarray:
    """A random prompt [T]."""
    return np.random.default_rng(0).integers(0, config.vocab_size, length, dtype=np.int32)


def generating(devices: Sequence[jax.Device], config: DecoderConfig = SMALL) -> Thunk:
    """Generates NEW tokens greedily after a prompt of PROMPT tokens, on the first device."""
    graph, parameters = random_decoder(config, devices[0])
    key = jax.device_put(jax.random.key(0), devices[0])
    return lambda: generate(
        graph,  # type: ignore[arg-type]
        parameters,
        prompt_of(config)[None],
        max_new_tokens=NEW,
        context=config.max_seq_len,
        sampling=Sampling(temperature=0.0),
        key=key,
    )


def generating_by_hand(devices: Sequence[jax.Device], config: DecoderConfig = SMALL) -> Thunk:
    """Generates the tokens of `generating` with the hand-written loop."""
    _, parameters = random_decoder(config, devices[0])
    weights = by_hand(parameters, config)
    return lambda: np.asarray(written_loop(weights, prompt_of(config), NEW, config))
