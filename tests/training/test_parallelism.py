"""Every parallelism and combinations: one device's losses and gradient norms, and nothing but the
collectives that belong to it."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax
import pytest

from launch.source import byte_level
from launch.training.objectives import LanguageModelling, next_tokens, text_batch
from launch.training.parallelism import Parallelism
from launch.training.step import Training, make_training
from models.decoder.config import DecoderConfig
from models.parallel.depth import stack
from models.parameters import Parameters, split

STEPS, ROWS, LENGTH = 20, 16, 16
CONFIG = DecoderConfig(
    vocab_size=32, num_layers=2, dim=32, hidden_dim=32, num_heads=8, num_kv_heads=4, head_dim=4,
    max_seq_len=LENGTH, tie_embeddings=False, initializer_range=0.1,
)  # fmt: skip
MODEL = byte_level(CONFIG).model
TOKENS = np.random.default_rng(0).integers(0, 32, (STEPS, ROWS, LENGTH + 1)).astype(np.int32)

AR, AG, RS = "all-reduce", "all-gather", "reduce-scatter"
KINDS = (AR, AG, RS, "all-to-all", "collective-permute", "collective-broadcast")

DATA, SHARDED, TENSOR = "data_parallel_size", "fully_sharded_size", "tensor_parallel_size"
MICRO = "gradient_accumulation_steps"
WHOLE_STREAM = {"sequence_parallel": False}
ZERO, SCAN, FUSED = {"zero_1": True}, {"scan_layers": True}, {"fuse_qkv": True}


def recompute(name: str) -> dict[str, Any]:
    return {"recompute": name}


# Loss and norm are always added up, so only one core knows no all-reduce.
CASES: Mapping[str, tuple[dict[str, Any], set[str]]] = {
    "scan": (SCAN, set()),
    "selective": (recompute("selective"), set()),
    "full": (SCAN | recompute("full"), set()),
    "micro-batches": ({MICRO: 4}, set()),
    "data": ({DATA: 8}, {AR}),
    "data, micro-batches": ({DATA: 4, MICRO: 2}, {AR}),
    "ZeRO-1": ({DATA: 8} | ZERO, {AR, RS, AG}),
    "fully sharded": ({SHARDED: 8}, {AR, RS, AG}),
    "fully sharded, scan, micro-batches": ({SHARDED: 4, MICRO: 2} | SCAN, {AR, RS, AG}),
    "hybrid sharded": ({DATA: 2, SHARDED: 4} | recompute("dots"), {AR, RS, AG}),
    "hybrid sharded, ZeRO-1": ({DATA: 4, SHARDED: 2} | ZERO | SCAN, {AR, RS, AG}),
    "tensor": ({TENSOR: 4}, {AR, RS, AG}),
    "tensor, whole stream": ({TENSOR: 4} | WHOLE_STREAM, {AR}),
    "tensor, repeated keys": ({TENSOR: 8} | SCAN, {AR, RS, AG}),
    "data, tensor": ({DATA: 2, TENSOR: 4} | FUSED, {AR, RS, AG}),
    "data, tensor, whole stream": ({DATA: 4, TENSOR: 2} | WHOLE_STREAM | SCAN, {AR}),
    "ZeRO-1, tensor, selective": (
        {DATA: 2, TENSOR: 4, MICRO: 4} | ZERO | recompute("selective"),
        {AR, RS, AG},
    ),
    "fully sharded, tensor": ({SHARDED: 2, TENSOR: 4} | recompute("full"), {AR, RS, AG}),
    "hybrid sharded, tensor, ZeRO-1": (
        {DATA: 2, SHARDED: 2, TENSOR: 2, MICRO: 2} | ZERO | SCAN | FUSED | recompute("dots"),
        {AR, RS, AG},
    ),
}


@pytest.fixture(scope="module")
def parameters() -> Parameters:
    """The first weights, which every case begins with."""
    _, parameters = split(MODEL.architecture.build(MODEL.config, 0))
    return {path: np.asarray(value) for path, value in parameters.items()}


@pytest.fixture(scope="module")
def expected(parameters: Parameters, cpu_devices: list[jax.Device]) -> np.ndarray:
    """Of one device of JAX's own platform."""
    training = make(Parallelism(), cpu_devices)
    return curve(training, training.step, parameters)


def make(parallelism: Parallelism, devices: list[jax.Device]) -> Training:
    parallelism = parallelism.fitted(CONFIG)
    return make_training(
        MODEL,
        optax.adamw(1e-2),
        parallelism,
        mesh=parallelism.mesh(devices),
        batch=text_batch(ROWS, LENGTH),
        objective=LanguageModelling(z_loss=1e-3, label_smoothing=0.1),
        clip_norm=0.5,
        seed=0,
    )


def curve(training: Training, step: Any, parameters: Parameters) -> np.ndarray:
    """Loss and gradient norm of every step [STEPS, 2]."""
    state = training.start(jax.device_put(parameters, training.shardings.parameters))
    values = []
    for tokens in TOKENS:
        batch = jax.device_put(next_tokens(tokens), training.batch_shardings)
        state, reported = step(state, batch)
        values.append((reported["loss"], reported["grad_norm"]))
    return np.asarray(values)


@pytest.mark.parametrize("name", CASES)
def test_one_devices_curve_and_the_collectives_that_belong_to_it(
    name: str, neuron_devices: list[jax.Device], parameters: Parameters, expected: np.ndarray
) -> None:
    settings, kinds = CASES[name]
    parallelism = Parallelism(**settings)
    training = make(parallelism, neuron_devices)
    compiled = training.step.lower(training.state, training.batch).compile()
    whole = stack(parameters) if parallelism.scan_layers else parameters
    np.testing.assert_allclose(curve(training, compiled, whole), expected, rtol=1e-4)
    found = re.findall(rf" ({'|'.join(KINDS)})(?:-start)?\(", compiled.as_text())
    assert set(found) == kinds
