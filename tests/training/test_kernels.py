"""Training with kernels that compute attention and norms, beside the compiler's own code."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from launch.errors import MeshError
from launch.estimates import estimate, language_work
from launch.trainer import train
from launch.training.kernels import COMPILER, NKI
from launch.training.objectives import text_batch
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS
from launch.training.step import Training, make_training
from models.decoder.config import DecoderConfig
from models.errors import KernelError
from tests.launch.programs import MODEL as ONE_LAYER
from tests.launch.programs import SOURCE, config, losses
from tests.training.tiny_training import CONFIG, MODEL, ROWS, batch, first_state

CUSTOM_CALL = "AwsNeuronCustomNativeKernel"
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "data, tensor, scores made again": (
        "fp32",
        {"data_parallel_size": 2, "tensor_parallel_size": 2, "recompute": "selective"},
    ),
    "fully sharded, in a scan": ("mixed_precision", {"fully_sharded_size": 2, "scan_layers": True}),
    "pipeline": ("fp32", {"pipeline_parallel_size": 2, "recompute": "full"}),
}
"""Precision recipe and parallelism."""


def make(
    devices: list[jax.Device],
    kernels: str,
    precision: str = "fp32",
    model: DecoderConfig = CONFIG,
    names: tuple[str, ...] = (),
    **settings: Any,
) -> Training:
    """`names` are of further arrays of the batch."""
    parallelism = Parallelism(**{"data_parallel_size": 1, **settings})
    shapes = text_batch(ROWS, model.max_seq_len)
    return make_training(
        MODEL._replace(config=model),
        optax.adamw(1e-2),
        parallelism,
        PRECISIONS[precision],
        mesh=parallelism.mesh(devices),
        batch=shapes | dict.fromkeys(names, shapes["tokens"]),
        kernels=kernels,
        seed=0,
    )


def curve(training: Training) -> np.ndarray:
    """Loss and gradient norm of two steps [2, 2]."""
    state, values = first_state(training), []
    for seed in range(2):
        rows = jax.device_put(batch(seed), training.batch_shardings)
        state, reported = training.step(state, rows)
        values.append((reported["loss"], reported["grad_norm"]))
    return np.asarray(values)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "pipeline")) for name in SETTINGS],
)
def test_steps_are_those_of_the_compilers_own_code(
    name: str, neuron_devices: list[jax.Device]
) -> None:
    precision, settings = SETTINGS[name]
    training = make(neuron_devices, NKI, precision, **settings)
    text = training.step.lower(training.state, training.batch).as_text()
    blocks = 1 if Parallelism(**settings).stacks else CONFIG.num_layers
    # Of each block, attention and turns of queries and keys, with gradients, and two norms; the
    # norm behind them.
    assert text.count(CUSTOM_CALL) >= 8 * blocks + 1
    rtol = 1e-4 if precision == "fp32" else 1e-2
    expected = curve(make(neuron_devices, COMPILER, precision, **settings))
    np.testing.assert_allclose(curve(training), expected, rtol=rtol)


@pytest.mark.slow
def test_a_run_with_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held_out = []
    for kernels in (COMPILER, NKI):
        settings = {"mesh": "data=1,model=1", "steps": 2, "check_memory": False}
        assert train(SOURCE, config(tmp_path / kernels, kernels=kernels, **settings)) == 0
        output = capsys.readouterr().out
        held_out.append(float(re.findall(r"held-out loss +(\S+) nats", output)[-1]))
    np.testing.assert_allclose(losses(tmp_path / NKI), losses(tmp_path / COMPILER), rtol=1e-5)
    np.testing.assert_allclose(held_out[1], held_out[0], rtol=1e-4)


@pytest.mark.slow
def test_an_estimate_has_the_kernels(tmp_path: Path) -> None:
    settings = config(tmp_path, kernels=NKI, mesh="data=1,model=1")
    found = estimate(language_work(ONE_LAYER, settings), settings, None, None)
    sources = {part.source.partition(":")[0].rpartition("/")[2] for part in found.kernels}
    assert sources >= {
        "cross_entropy.py",
        "flash_attention.py",
        "flash_attention_backward.py",
        "rms_norm.py",
        "rope.py",
    }
    assert not [line for line in found.assumed if "host" in line]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "window": (
        {"model": replace(CONFIG, sliding_window=8, sliding_layers=(0,))},
        "compute a window",
    ),
    "soft cap": (
        {"model": replace(CONFIG, attention_softcap=30.0)},
        "compute a soft cap of scores",
    ),
    "wide heads": ({"model": replace(CONFIG, head_dim=160)}, "heads of 160 numbers"),
    "packed rows": ({"names": ("segments", "positions")}, "compute several texts in a row"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_kernels_cannot_compute_is_refused_before_anything_is_compiled(
    name: str, cpu_devices: list[jax.Device]
) -> None:
    settings, message = REFUSED[name]
    training = make(cpu_devices, NKI, **settings)
    with pytest.raises(KernelError, match=rf"{message}.*--kernels=compiler"):
        training.step.lower(training.state, training.batch)


def test_positions_that_cores_share_have_no_kernel(cpu_devices: list[jax.Device]) -> None:
    with pytest.raises(MeshError, match="--kernels=nki: attention that context=2 shares"):
        make(cpu_devices, NKI, context_parallel_size=2)


def test_the_partitioner_divides_no_kernel(cpu_devices: list[jax.Device]) -> None:
    alone = MODEL._replace(architecture=replace(MODEL.architecture, sharing=None))
    parallelism = Parallelism(data_parallel_size=1, tensor_parallel_size=2)
    with pytest.raises(MeshError, match=r"--kernels=nki: XLA's partitioner shares .* along model"):
        make_training(
            alone,
            optax.adamw(1e-2),
            parallelism,
            mesh=parallelism.mesh(cpu_devices),
            batch=text_batch(ROWS, CONFIG.max_seq_len),
            kernels=NKI,
            seed=0,
        )
