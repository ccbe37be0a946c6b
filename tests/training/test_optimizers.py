"""Optimizers by name against optax called directly on plain matrices."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from launch.errors import ModelError, SettingsError
from launch.training.optimizers import OPTIMIZERS, OptimizerSettings, make_optimizer
from launch.training.parameter_kinds import Kind, kind_of, kinds_of, matrix_axes
from models import pretrained
from models.registry import ARCHITECTURES
from models.weights.fields import Fields
from tests.models.parity.case import Case
from tests.models.parity.cases import CASES

RATE = optax.linear_schedule(0.02, 0.01, 10)
SHAPES = {
    "blocks.0.attention.query.kernel": (16, 4, 8),
    "blocks.0.attention.query.bias": (4, 8),
    "blocks.0.attention.output.kernel": (4, 8, 16),
    "blocks.0.mlp.experts_up": (2, 16, 24),
    "blocks.0.mlp.up.kernel": (160, 130),
    "embedding.table": (12, 16),
    "encoder.sinusoids": (12, 16),
    "norm.scale": (16,),
}
AXES = {
    "blocks.0.attention.query.kernel": ("dim", "heads", "head_dim"),
    "blocks.0.attention.output.kernel": ("heads", "head_dim", "dim"),
    "blocks.0.mlp.experts_up": ("experts", "dim", "hidden_dim"),
    "blocks.0.mlp.up.kernel": ("dim", "hidden_dim"),
    "blocks.1.mlp.up.kernel": ("dim", "hidden_dim"),
    "blocks.0.attention.query.bias": ("heads", "head_dim"),
    "embedding.table": ("vocab", "dim"),
    "encoder.sinusoids": ("positions", "dim"),
    "norm.scale": ("residual",),
}
AS_MATRIX = {
    "blocks.0.attention.query.kernel": (16, 32),
    "blocks.0.attention.output.kernel": (32, 16),
    "blocks.0.mlp.up.kernel": (160, 130),
}
DECAYING = {path for path in SHAPES if not path.endswith(("bias", "scale", "sinusoids"))}


def adamw(parameters: dict[str, Any]) -> optax.GradientTransformation:
    mask = {path: path in DECAYING for path in parameters}
    return optax.adamw(RATE, b1=0.9, b2=0.95, weight_decay=0.1, mask=mask)


def adafactor(parameters: dict[str, Any]) -> optax.GradientTransformation:
    mask = {path: path in DECAYING for path in parameters}
    return optax.adafactor(
        RATE, weight_decay_rate=lambda count: 0.1 * RATE(count), weight_decay_mask=mask
    )


def lion(parameters: dict[str, Any]) -> optax.GradientTransformation:
    mask = {path: path in DECAYING for path in parameters}
    return optax.lion(RATE, b1=0.9, b2=0.99, weight_decay=0.1, mask=mask)


REFERENCES: dict[str, Callable[[dict[str, Any]], optax.GradientTransformation]] = {
    "adamw": adamw,
    "adafactor": adafactor,
    "lion": lion,
}


def drawn(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {path: rng.normal(size=shape).astype(np.float32) for path, shape in SHAPES.items()}


def after_ten_steps(optimizer: optax.GradientTransformation, start: Any, view: Any) -> Any:
    """Weights after ten steps of the same gradients; `view` takes them out of all."""

    @jax.jit
    def step(parameters: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    parameters, state = start, optimizer.init(start)
    for number in range(10):
        parameters, state = step(parameters, state, view(drawn(number + 1)))
    return parameters


@pytest.fixture(autouse=True)
def _on_cpu(cpu_devices: list[jax.Device]) -> Any:
    with jax.default_device(cpu_devices[0]):
        yield


@pytest.mark.parametrize("name", REFERENCES)
def test_ten_steps_bit_for_bit(name: str) -> None:
    start = jax.tree.map(jnp.asarray, drawn(0))
    optimizer = make_optimizer(OptimizerSettings(optimizer=name), RATE, AXES)
    found = after_ten_steps(optimizer, start, lambda gradients: gradients)
    expected = after_ten_steps(REFERENCES[name](start), start, lambda gradients: gradients)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_muon_takes_matrices_as_they_multiply() -> None:
    """Heads belong together and experts apart; what is no matrix goes to AdamW."""

    def matrices(parameters: dict[str, Any]) -> dict[str, Any]:
        experts = parameters["blocks.0.mlp.experts_up"]
        return {
            **{path: parameters[path].reshape(shape) for path, shape in AS_MATRIX.items()},
            "expert 0": experts[0],
            "expert 1": experts[1],
        }

    def others(parameters: dict[str, Any]) -> dict[str, Any]:
        return {path: parameters[path] for path in SHAPES if kind_of(path) is not Kind.MATRIX}

    start = jax.tree.map(jnp.asarray, drawn(0))
    optimizer = make_optimizer(OptimizerSettings(optimizer="muon"), RATE, AXES)
    found = after_ten_steps(optimizer, start, lambda gradients: gradients)
    muon = contrib.muon(RATE, weight_decay=0.1, consistent_rms=0.2)
    expected = after_ten_steps(muon, matrices(start), matrices)
    for path, weights in matrices(found).items():
        # Products of another shape add in another order.
        np.testing.assert_allclose(weights, expected[path], rtol=0, atol=1e-5, err_msg=path)
    expected = after_ten_steps(adamw(others(start)), others(start), others)
    # XLA fuses another program in another way: its numbers may be rounded once more in each step.
    once_a_step = partial(np.testing.assert_allclose, rtol=10 * np.finfo(np.float32).eps)
    jax.tree.map(once_a_step, others(found), expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_blocks_change_like_single_ones(name: str) -> None:
    paths = ("blocks.0.mlp.up.kernel", "blocks.1.mlp.up.kernel")
    single = {path: drawn(n)["blocks.0.mlp.up.kernel"] for n, path in enumerate(paths)}
    gradients = {path: drawn(n + 5)["blocks.0.mlp.up.kernel"] for n, path in enumerate(paths)}
    # Of blocks of other sizes, whose norms must not mix.
    single[paths[1]] *= 30
    gradients[paths[1]] *= 30
    optimizer = make_optimizer(OptimizerSettings(optimizer=name), RATE, AXES)

    def stacked(tree: dict[str, Any]) -> dict[str, Any]:
        return {"blocks.*.mlp.up.kernel": jnp.stack([tree[path] for path in paths])}

    @jax.jit
    def update(gradients: Any, parameters: Any) -> Any:
        return optimizer.update(gradients, optimizer.init(parameters), parameters)[0]

    expected = stacked(update(gradients, single))
    found = update(stacked(gradients), stacked(single))
    for path, wanted in expected.items():
        # Muon multiplies fifteen times, sums of up to 160 numbers in an order of XLA's choosing.
        atol = 2.0**-16 * np.abs(wanted).max((1, 2), keepdims=True)
        assert (np.abs(np.asarray(found[path]) - wanted) <= atol).all()


def test_every_optimizer_is_compared() -> None:
    assert {*REFERENCES, "muon"} == set(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_decays(name: str) -> None:
    """Without gradients, only decay changes weights."""
    settings = OptimizerSettings(optimizer=name, decay_embeddings=False)
    optimizer = make_optimizer(settings, lambda count: jnp.float32(0.5), AXES)
    parameters = {path: jnp.ones(shape) for path, shape in SHAPES.items()}
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    updates, _ = jax.jit(optimizer.update)(zeros, optimizer.init(parameters), parameters)
    for path, update in updates.items():
        expected = -0.5 * 0.1 if path in DECAYING - {"embedding.table"} else 0.0
        np.testing.assert_allclose(update, expected, rtol=1e-6, err_msg=path)


def test_refused() -> None:
    with pytest.raises(SettingsError, match="--optimizer=sgd is unknown; choose one of adamw, "):
        OptimizerSettings(optimizer="sgd")
    with pytest.raises(SettingsError, match=r"--ema_decay=1\.0 must be less than 1"):
        OptimizerSettings(ema_decay=1.0)


KIND_CASES = {ARCHITECTURES[case.architecture].model: case for case in CASES}
"""One case for each class of models: their architectures have parameters of the same names."""


@pytest.mark.parametrize("case", KIND_CASES.values(), ids=lambda case: case.architecture)
def test_every_parameter_of_every_model_has_a_kind(case: Case) -> None:
    values = {**case.config, "architectures": [case.architecture]}
    model = pretrained.describe_fields(Fields(values, "the test"))
    _, parameters = model.architecture.abstract(model.config)
    axes = model.axis_names()
    for path, kind in kinds_of(parameters).items():
        if kind is Kind.MATRIX:
            contracted, results = matrix_axes(path, axes)
            assert contracted
            assert results
            assert not {*contracted} & {*results}
        if kind in (Kind.SCALE, Kind.BIAS):
            assert len(parameters[path].shape) <= 2, path


def test_a_parameter_of_no_kind() -> None:
    with pytest.raises(ModelError, match=r"the parameter blocks\.0\.twist is: .*Add a row"):
        kind_of("blocks.0.twist")
