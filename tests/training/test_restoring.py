"""A state restores onto any mesh, parallelism, depth and precision."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from launch import checkpoints
from launch.checkpoints import CheckpointWriter, Retention
from launch.errors import LaunchError
from launch.source import byte_level
from launch.training.objectives import text_batch
from launch.training.optimizers import OptimizerSettings, make_optimizer
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS
from launch.training.step import Training, make_training
from models.decoder.config import DecoderConfig
from models.parallel.depth import Order, unstack

CONFIG = DecoderConfig(
    num_layers=4, dim=32, hidden_dim=64, num_heads=4, num_kv_heads=2, head_dim=8, max_seq_len=32
)
MODEL = byte_level(CONFIG).model

WAYS = {
    "one core": Parallelism(),
    "stacked": Parallelism(scan_layers=True, data_parallel_size=8),
    "tensor": Parallelism(tensor_parallel_size=2, data_parallel_size=4, zero_1=True),
    "fully sharded, stacked": Parallelism(fully_sharded_size=8, scan_layers=True),
    "stacked, ZeRO-1": Parallelism(
        tensor_parallel_size=4, data_parallel_size=2, zero_1=True, scan_layers=True
    ),
    "pipeline": Parallelism(pipeline_parallel_size=2, data_parallel_size=2, zero_1=True),
    "unequal stages": Parallelism(pipeline_parallel_size=2, pipeline_cuts="3"),
    "chunks of stages": Parallelism(
        pipeline_parallel_size=2, virtual_pipeline_parallel_size=2, data_parallel_size=2
    ),
    "context": Parallelism(context_parallel_size=2, data_parallel_size=2),
}
CHAIN = (*WAYS, "one core")


def training(
    devices: list[jax.Device],
    parallelism: Parallelism,
    precision: str = "fp32",
    optimizer: str = "adamw",
    **changes: object,
) -> Training:
    parallelism = parallelism.fitted(CONFIG)
    settings = {"batch": text_batch(8, 32), "seed": 0, "mesh": parallelism.mesh(devices), **changes}
    made = make_optimizer(
        OptimizerSettings(optimizer=optimizer),
        optax.constant_schedule(1e-3),
        MODEL.axis_names(),
    )
    return make_training(MODEL, made, parallelism, PRECISIONS[precision], **settings)  # type: ignore[arg-type]


def save(directory: Path, step: int, state: object, order: object = None) -> None:
    writer = CheckpointWriter(directory, Retention(100))
    writer.save(step, checkpoints.items(state), {checkpoints.ORDER: order})  # type: ignore[type-var]
    writer.close()


def logical(state: object, order: Order | None) -> dict[str, np.ndarray]:
    """Every array by its path in a state without stacks."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        name = getattr(path[-1], "key", "")
        of_blocks = unstack({name: leaf}, order)
        for single, value in of_blocks.items():
            found[jax.tree_util.keystr((*path[:-1], single))] = np.asarray(value)
    return found


@pytest.mark.parametrize(
    ("optimizer", "chain"),
    [
        pytest.param("adamw", CHAIN, marks=pytest.mark.slow),
        ("adafactor", ("one core", "unequal stages", "one core")),
        ("muon", ("one core", "unequal stages", "one core")),
    ],
)
def test_from_each_way_to_the_next(tmp_path: Path, optimizer: str, chain: tuple[str, ...]) -> None:
    devices = jax.devices("cpu")
    way = training(devices, WAYS[chain[0]], optimizer=optimizer)
    state = way.init()
    moments = jax.tree.map(
        lambda x: x + jnp.arange(x.size, dtype=x.dtype).reshape(x.shape) if x.ndim else x,
        state.optimizer,
    )
    state = state._replace(optimizer=moments, step=jnp.int32(7))
    expected = logical(state, way.order)
    for step, name in enumerate(chain):
        save(tmp_path, step, state, way.order)
        way = training(devices, WAYS[name], optimizer=optimizer)
        target = checkpoints.abstract(way.state, way.shardings)
        state = checkpoints.restore_state(tmp_path, step, target, way.start, way.order)
        jax.tree.map(lambda array, leaf: array.sharding == leaf.sharding or 1 / 0, state, target)
        got = logical(state, way.order)
        assert got.keys() == expected.keys(), name
        for path, value in expected.items():
            np.testing.assert_array_equal(got[path], value, err_msg=f"{name}: {path}")


@pytest.mark.slow
def test_from_one_precision_to_another(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    devices = jax.devices("cpu")
    mixed = training(devices, Parallelism(), "fp8_delayed", ema_decay=0.9)
    plain = training(devices, Parallelism(), "fp32")
    state = plain.init()
    save(tmp_path, 0, state)
    target = checkpoints.abstract(mixed.state, mixed.shardings)
    got = checkpoints.restore_state(tmp_path, 0, target, mixed.start)
    said = capfd.readouterr().err
    assert "lacks the histories of delayed scaling, the average of the weights: " in said
    jax.tree.map(np.testing.assert_array_equal, got.parameters, state.parameters)
    jax.tree.map(np.testing.assert_array_equal, got.average, state.parameters)
    save(tmp_path, 1, got)
    target = checkpoints.abstract(plain.state, plain.shardings)
    back = checkpoints.restore_state(tmp_path, 1, target, plain.start)
    jax.tree.map(np.testing.assert_array_equal, back, state)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    way = training(jax.devices("cpu"), Parallelism())
    save(tmp_path, 0, way.init())
    target = checkpoints.abstract(way.state, way.shardings)
    parameters = {path.replace("mlp", "moe"): leaf for path, leaf in target.parameters.items()}
    with pytest.raises(LaunchError, match="do not have the requested shapes"):
        checkpoints.restore_state(tmp_path, 0, target._replace(parameters=parameters), way.start)
