"""The training job's step on a mesh of all devices: taking one, and compiling one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from launch.benchmarks.paired import Thunk
from launch.config import TrainConfig
from launch.meshes import default_mesh
from launch.training.objectives import next_tokens, text_batch
from launch.training.optimizers import make_optimizer
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS
from launch.training.schedules import ScheduleSettings, make_schedule
from launch.training.step import Training, make_training
from models.decoder.config import DecoderConfig
from models.decoder.families import llama_json
from models.pretrained import Described, describe_fields
from models.weights.fields import Fields

COMPILED_LAYERS = 12
FLAT, DEEP = 4, 64  # layers of models whose blocks are compiled once


def byte_level(config: DecoderConfig) -> Described:
    """The model that the training job makes of its flags."""
    return describe_fields(Fields(llama_json(config), "the benchmark"))


def mesh_of(devices: Sequence[jax.Device], config: DecoderConfig, batch_size: int) -> Mesh:
    """The mesh that the training job would choose if these were all devices."""
    sizes = default_mesh(len(devices), config.num_kv_heads, batch_size)
    auto = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=auto, devices=devices)


def job(
    devices: Sequence[jax.Device],
    model: Described,
    *,
    learning_rate: float = ScheduleSettings.learning_rate,
    precision: str = "fp32",
    scan_layers: bool = False,
) -> Training:
    """The functions of a training run with default settings but for these."""
    schedule = ScheduleSettings(learning_rate=learning_rate)
    config = TrainConfig(checkpoint_dir=Path(), schedule=schedule)
    mesh = mesh_of(devices, model.config, config.batch_size)
    return make_training(
        model,
        partial(make_optimizer, config.optimizer, make_schedule(schedule, config.steps)),
        Parallelism.of(mesh.shape, scan_layers=scan_layers),
        PRECISIONS[precision],
        mesh=mesh,
        batch=text_batch(config.batch_size, model.config.max_seq_len),
        clip_norm=config.clip_norm,
        seed=config.seed,
    )


def training_step(devices: Sequence[jax.Device], precision: str = "fp32") -> Thunk:
    """A thunk that takes a training step of `job` and waits for it; the state is donated."""
    model = byte_level(DecoderConfig())
    training = job(devices, model, precision=precision)
    state = training.init()
    shape = (TrainConfig.batch_size, model.config.max_seq_len + 1)
    numbers = np.random.default_rng(0).integers(0, model.config.vocab_size, shape, dtype=np.int32)
    batch = jax.device_put(next_tokens(numbers), training.batch_shardings)

    def run() -> None:
        nonlocal state
        state, values = training.step(state, batch)
        jax.block_until_ready((state, values))

    return run


def compiling(devices: Sequence[jax.Device]) -> Thunk:
    """Lowers and compiles the job's step for a decoder of COMPILED_LAYERS unrolled blocks.

    Each call compiles another learning rate, so that no cache of any layer can answer.
    """
    model = byte_level(DecoderConfig(num_layers=COMPILED_LAYERS))
    rates = (ScheduleSettings.learning_rate * (1 + 1e-3 * i) for i in itertools.count(1))

    def run() -> None:
        jax.clear_caches()
        training = job(devices, model, learning_rate=next(rates))
        jitted: Any = training.step
        jitted.lower(training.state, training.batch).compile()

    return run


def compiling_scanned(devices: Sequence[jax.Device], layers: int) -> Thunk:
    """Makes the job for a decoder of that many blocks under a scan, from the first trace to the
    compiled functions of its first state and of its step."""
    model = byte_level(DecoderConfig(num_layers=layers))
    rates = (ScheduleSettings.learning_rate * (1 + 1e-3 * i) for i in itertools.count(1))

    def run() -> None:
        jax.clear_caches()
        training = job(devices, model, learning_rate=next(rates), scan_layers=True)
        init: Any = training.init
        init.lower().compile()
        step: Any = training.step
        step.lower(training.state, training.batch).compile()

    return run
