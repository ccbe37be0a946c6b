"""Optimizers and recipes on meshes: the weights of one device, states split like weights."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from launch.training.optimizers import OPTIMIZERS, OptimizerSettings, make_optimizer
from tests.training.tiny_training import MODEL, batch, first_state, tiny_training

SIZES = {"data": 2, "model": 2}
THREE_AXES = {"data": 2, "fsdp": 2, "model": 2}
KERNEL = "blocks.0.mlp.up.kernel"


def optimizer(name: str) -> optax.GradientTransformation:
    # A large epsilon: Adam's updates of weights without a gradient are signs of roundings.
    settings = OptimizerSettings(optimizer=name, adam_epsilon=1e-3)
    return make_optimizer(settings, lambda count: jnp.float32(1e-2), MODEL.axis_names())


def parameters_after(steps: int, devices: list[jax.Device], precision: str, **settings: Any) -> Any:
    training = tiny_training(devices, precision, **settings)
    state = first_state(training)
    for number in range(steps):
        state, _ = training.step(state, batch(number))
    return training, state


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mesh_trains_like_one_device(name: str, neuron_devices: list[jax.Device]) -> None:
    _, alone = parameters_after(2, neuron_devices, "fp32", optimizer=optimizer(name))
    _, shared = parameters_after(
        2, neuron_devices, "fp32", optimizer=optimizer(name), sizes=THREE_AXES, zero_1=True
    )
    for path, weights in alone.parameters.items():
        far = np.abs(np.asarray(shared.parameters[path]) - np.asarray(weights)) > 2e-5
        # Lion's updates are signs: where a gradient is but a rounding, they are whole steps.
        assert np.mean(far) <= (0.01 if name == "lion" else 0), path


@pytest.mark.slow
def test_fp8_scales_are_those_of_whole_tensors(neuron_devices: list[jax.Device]) -> None:
    """Every core sees a part of each tensor, but all scale by the largest magnitude of all."""
    histories, losses = [], []
    for sizes in ({"data": 1, "model": 1}, THREE_AXES):
        training = tiny_training(neuron_devices, "fp8_delayed", sizes=sizes)
        state = first_state(training)
        for number in range(3):
            state, values = training.step(state, batch(number))
            losses.append(float(values["loss"]))
        histories.append(jax.tree.map(np.asarray, state.scaling))
    eps = float(jnp.finfo(jnp.bfloat16).eps)
    np.testing.assert_allclose(losses[3:], losses[:3], rtol=eps)
    for path, alone in histories[0].items():
        assert (alone[..., :3] > 0).all()
        # The first step's are of the same weights: activations after several roundings to BF16,
        # gradients after some to E5M2.
        narrow = float(jnp.finfo(jnp.float8_e5m2).eps)
        for kind, rtol in enumerate((4 * eps, 0, narrow)):
            found = histories[1][path][kind, 2]
            np.testing.assert_allclose(found, alone[kind, 2], rtol=rtol, err_msg=path)


def test_factored_moments_are_split_like_the_axes_they_have(
    neuron_devices: list[jax.Device],
) -> None:
    factored = optax.adafactor(1e-2, min_dim_size_to_factor=32)
    training = tiny_training(neuron_devices, "fp32", optimizer=factored, sizes=SIZES, zero_1=True)
    assert training.shardings.parameters[KERNEL].spec == P("data", "model")
    moments = training.shardings.optimizer[0]
    # The kernel is [32, 64]: rows are means over the longer axis, columns over the other.
    assert training.state.optimizer[0].v_row[KERNEL].shape == (32,)
    assert moments.v_row[KERNEL].spec == P("data")
    assert moments.v_col[KERNEL].spec == P("model")
    assert moments.v[KERNEL].spec == P()
    state, _ = training.step(first_state(training), batch())
    assert state.optimizer[0].v_col[KERNEL].sharding.spec == P("model")


def test_masters_are_split_by_zero_and_gathered_in_bf16(neuron_devices: list[jax.Device]) -> None:
    training = tiny_training(
        neuron_devices, "mixed_precision", sizes={"data": 4, "model": 1}, zero_1=True
    )
    state = training.state
    held = jax.tree.leaves((state.parameters, state.optimizer))
    shardings = jax.tree.leaves((training.shardings.parameters, training.shardings.optimizer))
    for leaf, sharding in zip(held, shardings, strict=True):
        if leaf.ndim:
            assert leaf.dtype == jnp.float32
            assert np.prod(sharding.shard_shape(leaf.shape)) == leaf.size // 4
    step: Any = training.step
    text = step.lower(training.state, training.batch).as_text()
    gathered = re.findall(r'"stablehlo.all_gather".*?-> tensor<[\dx]*(\w+)>', text)
    assert len(gathered) == len(state.parameters)
    assert set(gathered) == {"bf16"}
    summed = re.findall(r'"stablehlo.reduce_scatter"(?:.*\n)*?.*-> tensor<[\dx]*(\w+)>', text)
    assert len(summed) == len(state.parameters)
    assert set(summed) == {"f32"}
