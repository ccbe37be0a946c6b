"""Pipelines, shared positions and shared experts in whole trainings: one device's curves."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

from launch.errors import MeshError
from launch.source import byte_level
from launch.training.objectives import next_tokens, text_batch
from launch.training.parallelism import Parallelism
from launch.training.step import Training, make_training
from models.decoder.config import DecoderConfig
from models.layers.moe import Experts

STEPS, ROWS, LENGTH = 20, 16, 16
DENSE = DecoderConfig(
    vocab_size=32, num_layers=2, dim=32, hidden_dim=32, num_heads=4, num_kv_heads=2, head_dim=8,
    max_seq_len=LENGTH, initializer_range=0.1,
)  # fmt: skip
EXPERTS = replace(DENSE, experts=Experts(4, 2, 16))
CAPACITY = replace(DENSE, experts=Experts(4, 2, 16, capacity_factor=1.0))
TOKENS = np.random.default_rng(0).integers(0, 32, (STEPS, ROWS, LENGTH + 1)).astype(np.int32)

STAGES, MICRO = "pipeline_parallel_size", "pipeline_parallel_num_microbatches"
DATA, SHARDED, TENSOR = "data_parallel_size", "fully_sharded_size", "tensor_parallel_size"
CONTEXT, EXPERT = "context_parallel_size", "expert_parallel_size"

CASES: dict[str, tuple[DecoderConfig, dict[str, Any]]] = {
    "ring, data, tensor": (DENSE, {CONTEXT: 2, DATA: 2, TENSOR: 2}),
    "pipeline, ZeRO-1, tensor, accumulation": (
        DENSE,
        {STAGES: 2, DATA: 2, TENSOR: 2, MICRO: 2, "gradient_accumulation_steps": 2, "zero_1": True},
    ),
    "experts, tensor": (EXPERTS, {EXPERT: 4, TENSOR: 2}),
    "capacity, data, tensor": (CAPACITY, {EXPERT: 2, DATA: 2, TENSOR: 2}),
}


def make(config: DecoderConfig, parallelism: Parallelism, devices: list[jax.Device]) -> Training:
    parallelism = parallelism.fitted(config)
    return make_training(
        byte_level(DENSE).model._replace(config=config),
        optax.adamw(3e-3),
        parallelism,
        mesh=parallelism.mesh(devices),
        batch=text_batch(ROWS, LENGTH),
        clip_norm=1.0,
        seed=0,
    )


def curve(training: Training) -> np.ndarray:
    """Loss and gradient norm of every step, and at last the loss in evaluation [STEPS + 1, 2]."""
    state, values = training.init(), []
    for tokens in TOKENS:
        batch = jax.device_put(next_tokens(tokens), training.batch_shardings)
        state, reported = training.step(state, batch)
        values.append((reported["loss"], reported["grad_norm"]))
    loss = training.evaluate(state, batch)
    return np.asarray([*values, (loss.total, loss.weight)])


@cache
def expected(config: DecoderConfig) -> np.ndarray:
    """Of one device of JAX's own platform."""
    return curve(make(config, Parallelism(), jax.devices("cpu")))


@pytest.mark.parametrize("name", CASES)
def test_curves_of_one_device(name: str, neuron_devices: list[jax.Device]) -> None:
    config, settings = CASES[name]
    training = make(config, Parallelism(**settings), neuron_devices)
    np.testing.assert_allclose(curve(training), expected(config), rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (DENSE, {STAGES: 4}, "2 blocks cannot be shared out over 4 chunks"),
        (DENSE, {STAGES: 2, "pipeline_cuts": "2"}, "does not cut 2 blocks into 2 chunks"),
        (DENSE, {STAGES: 2, MICRO: 5}, "16 rows of a core cannot be split into micro-batches"),
        (
            DENSE,
            {CONTEXT: 8, "context_parallel_method": "all_to_all"},
            "share the 4 query heads of a core",
        ),
        (CAPACITY, {CONTEXT: 2}, "count the tokens of whole rows"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    config: DecoderConfig,
    settings: dict[str, Any],
    message: str,
    neuron_devices: list[jax.Device],
) -> None:
    with pytest.raises(MeshError, match=message):
        make(config, Parallelism(**settings), neuron_devices)
