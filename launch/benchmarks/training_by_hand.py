"""The training job's step on one device, beside the same mathematics written by hand in JAX.

Axis names: B rows, T tokens, K key-value heads, G query heads of each, H head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from launch.benchmarks.decoding import Written, by_hand, random_decoder
from launch.benchmarks.paired import Thunk
from launch.config import TrainConfig
from launch.training.optimizers import OptimizerSettings
from launch.training.schedules import ScheduleSettings, make_schedule
from models.decoder.config import DecoderConfig
from models.parameters import Parameters

Step = Callable[[Any, jax.Array, jax.Array], tuple[Any, jax.Array, jax.Array]]


def written_loss(
    weights: Written, tokens: jax.Array, targets: jax.Array, config: DecoderConfig
) -> jax.Array:
    """Mean cross entropy of targets [B, T], in nats, FP32 []."""
    rows, length = tokens.shape
    heads = (rows, length, config.num_kv_heads, -1, config.head_dim)
    rates = config.rotary.theta ** (-jnp.arange(0, config.head_dim, 2) / config.head_dim)
    angles = jnp.arange(length)[:, None, None, None] * rates
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    seen = jnp.tri(length, dtype=bool)

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + config.norm_eps) * scale

    def turned(x: jax.Array) -> jax.Array:
        low, high = jnp.split(x.reshape(heads), 2, axis=-1)
        return jnp.concatenate([low * cosine - high * sine, high * cosine + low * sine], -1)

    x = weights.table[tokens]
    for block in weights.blocks:
        y = norm(x, block.attention_norm)
        query, keys = turned(y @ block.query), turned(y @ block.key)[..., 0, :]
        values = (y @ block.value).reshape(heads)[..., 0, :]
        scores = jnp.einsum("btkgh,bskh->bkgts", query, keys) * config.head_dim**-0.5
        shares = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
        mixed = jnp.einsum("bkgts,bskh->btkgh", shares, values)
        x = x + mixed.reshape(rows, length, -1) @ block.output
        y = norm(x, block.mlp_norm)
        x = x + (jax.nn.silu(y @ block.gate) * (y @ block.up)) @ block.down
    logits = norm(x, weights.norm) @ weights.table.T
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def written_step(config: DecoderConfig) -> tuple[optax.GradientTransformation, Step]:
    """The job's optimizer, and the jitted (state, tokens, targets) -> (state, loss, norm) of it; a
    state, which is donated, is parameters by path and moments."""
    job, settings = TrainConfig, OptimizerSettings()
    optimizer = optax.adamw(
        make_schedule(ScheduleSettings(), job.steps),
        b1=settings.adam_beta1,
        b2=settings.adam_beta2,
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        mask=lambda parameters: {path: "norm" not in path for path in parameters},
    )

    def loss_of(parameters: Parameters, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        return written_loss(by_hand(parameters, config), tokens, targets, config)

    def step(state: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        parameters, moments = state
        loss, gradients = jax.value_and_grad(loss_of)(parameters, tokens, targets)
        norm = optax.tree.norm(gradients)
        factor = jnp.minimum(1.0, job.clip_norm / norm)
        gradients = jax.tree.map(lambda gradient: gradient * factor, gradients)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), loss, norm

    return optimizer, jax.jit(step, donate_argnums=0)


def training_by_hand(devices: Sequence[jax.Device]) -> Thunk:
    """A thunk that takes a step of the job's model and batch on the first device."""
    config = DecoderConfig()
    _, parameters = random_decoder(config, devices[0])
    shape = (TrainConfig.batch_size, config.max_seq_len + 1)
    rows = np.random.default_rng(0).integers(0, config.vocab_size, shape, dtype=np.int32)
    tokens, targets = jax.device_put((rows[:, :-1], rows[:, 1:]), devices[0])
    optimizer, step = written_step(config)
    state = jax.device_put((parameters, optimizer.init(parameters)), devices[0])

    def run() -> tuple[jax.Array, jax.Array]:
        nonlocal state
        state, loss, norm = step(state, tokens, targets)
        jax.block_until_ready(state)
        return loss, norm

    return run
