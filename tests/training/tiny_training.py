"""Trainings of a tiny decoder."""

from typing import Any

import jax
import numpy as np
import optax

from launch.source import byte_level
from launch.training.objectives import next_tokens, text_batch
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS, Precision
from launch.training.state import TrainState
from launch.training.step import Training, make_training
from models.decoder.config import DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=64,
    num_layers=2,
    dim=32,
    hidden_dim=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_seq_len=16,
)
MODEL = byte_level(CONFIG).model
ROWS = 8


def batch(seed: int = 0) -> dict[str, np.ndarray]:
    shape = (ROWS, CONFIG.max_seq_len + 1)
    return next_tokens(np.random.default_rng(seed).integers(0, 64, shape, dtype=np.int32))


def tiny_training(
    devices: list[jax.Device],
    precision: str | Precision,
    *,
    optimizer: optax.GradientTransformation | None = None,
    sizes: dict[str, int] | None = None,
    zero_1: bool = False,
    accumulation: int = 1,
    **settings: Any,
) -> Training:
    parallelism = Parallelism.of(
        sizes or {"data": 1, "model": 1}, gradient_accumulation_steps=accumulation, zero_1=zero_1
    )
    return make_training(
        MODEL,
        optimizer or optax.adamw(1e-2),
        parallelism,
        PRECISIONS[precision] if isinstance(precision, str) else precision,
        mesh=parallelism.mesh(devices),
        batch=text_batch(ROWS, CONFIG.max_seq_len),
        seed=0,
        **settings,
    )


def first_state(training: Training) -> TrainState:
    """The state of weights that were drawn without compiling anything."""
    rng = np.random.default_rng(0)
    # Vectors are scales of norms.
    drawn = {
        path: np.ones(leaf.shape) if len(leaf.shape) == 1 else rng.normal(0, 0.05, leaf.shape)
        for path, leaf in training.state.parameters.items()
    }
    weights = {path: x.astype(training.state.parameters[path].dtype) for path, x in drawn.items()}
    return training.start(jax.device_put(weights, training.shardings.parameters))
