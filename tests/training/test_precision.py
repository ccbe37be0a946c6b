"""Precision recipes: what the compiled step computes in, against plain JAX on `cpu`."""

from collections import Counter
from dataclasses import fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

from launch.errors import SettingsError
from launch.training.optimizers import OPTIMIZERS
from launch.training.platform import check_platform, prepare_platform
from launch.training.precision import PRECISIONS, PrecisionSettings
from launch.training.schedules import SCHEDULES
from models.losses import cross_entropy
from models.parameters import merge
from tests.conftest import PROJECT, RunPython
from tests.quick_compile import QUICK_COMPILE
from tests.training.tiny_training import MODEL, batch, first_state, tiny_training

DTYPES = {
    "fp32": ("float32", "float32", "float32"),
    "autocast": ("float32", "float32", "float32"),
    "mixed_precision": ("bfloat16", "float32", "float32"),
    "mixed_precisionSR": ("bfloat16", "float32", "float32"),
    "bf16SR": ("bfloat16", "bfloat16", "bfloat16"),
    "manual": ("bfloat16", "bfloat16", "bfloat16"),
    "fp8_current": ("bfloat16", "float32", "float32"),
    "fp8_delayed": ("bfloat16", "float32", "float32"),
    "mxfp8": ("bfloat16", "float32", "float32"),
    "qat_int8": ("bfloat16", "float32", "float32"),
    "qat_fp8": ("bfloat16", "float32", "float32"),
}
"""Recipe -> types of layers, of gradients added up, and of weights and moments.

Source: the recipes' documentation (`precision.type` of neuronx-distributed-training).
"""


def equations(jaxpr: Any) -> list[Any]:
    found = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for inner in jaxprs_in_params(equation.params):
            found.extend(equations(inner))
    return found


def test_every_recipe_is_described() -> None:
    assert set(DTYPES) == set(PRECISIONS)
    page = (PROJECT / "docs" / "training.md").read_text()
    names = [*PRECISIONS, *OPTIMIZERS, *SCHEDULES]
    names += [f"--{entry.name}" for entry in fields(PrecisionSettings)]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", DTYPES)
def test_types_of_the_step(name: str, neuron_devices: list[jax.Device]) -> None:
    layers, accumulation, weights = DTYPES[name]
    training = tiny_training(neuron_devices, name, accumulation=2)
    floats = [
        leaf.dtype.name
        for leaf in jax.tree.leaves((training.state.parameters, training.state.optimizer))
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    assert Counter(floats) == {weights: 3 * len(training.state.parameters)}
    step: Any = training.step
    found = equations(step.trace(training.state, training.batch).jaxpr.jaxpr)
    operands = {
        operand.aval.dtype.name
        for equation in found
        if equation.primitive.name == "dot_general"
        for operand in equation.invars
    }
    narrow = {"float8_e4m3", "float8_e5m2"} if name.startswith("fp8") else set()
    assert operands == {layers} | narrow
    (loop,) = [
        e.params
        for e in found
        if e.primitive.name == "scan" and e.params["num_carry"] > len(training.state.parameters)
    ]
    carried = loop["jaxpr"].in_avals[loop["num_consts"] :][: loop["num_carry"]]
    sums = Counter(aval.dtype.name for aval in carried if aval.ndim)
    histories = {"float32": len(training.state.scaling)}
    assert sums == Counter({accumulation: len(training.state.parameters)}) + Counter(histories)


def reference_losses(precision: str, masters: Any, steps: int) -> list[float]:
    """Training as the recipe's documentation describes it, on one device, without any of ours."""
    layers, _, weights_dtype = DTYPES[precision]
    optimizer = optax.adamw(1e-2)
    config = PRECISIONS[precision].configure(MODEL.config)
    graph, _ = MODEL.architecture.abstract(config)
    state = optimizer.init(masters)

    @partial(jax.jit, compiler_options=QUICK_COMPILE)
    def step(masters: Any, state: Any, data: Any) -> Any:
        def loss_of(weights: Any) -> jax.Array:
            return jnp.mean(cross_entropy(merge(graph, weights)(data["tokens"]), data["targets"]))

        weights = jax.tree.map(lambda w: w.astype(layers), masters)
        loss, gradients = jax.value_and_grad(loss_of)(weights)
        gradients = jax.tree.map(lambda g: g.astype(weights_dtype), gradients)
        updates, state = optimizer.update(gradients, state, masters)
        return optax.apply_updates(masters, updates), state, loss

    losses = []
    for number in range(steps):
        masters, state, loss = step(masters, state, batch(number))
        losses.append(float(loss))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed_precision", "manual"])
def test_losses_of_the_recipe(
    name: str, neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    training = tiny_training(neuron_devices, name)
    state, losses = first_state(training), []
    masters = jax.tree.map(np.asarray, state.parameters)
    for number in range(4):
        state, values = training.step(state, batch(number))
        losses.append(float(values["loss"]))
    with jax.default_device(cpu_devices[0]):
        expected = reference_losses(name, jax.tree.map(jnp.asarray, masters), 4)
    # An operand's last digit: products are rounded to the type of the layers.
    rtol = float(jnp.finfo(DTYPES[name][0]).eps)
    np.testing.assert_allclose(losses, expected, rtol=max(rtol, 1e-6))


ONES = """
    import jax, jax.numpy as jnp, numpy as np, optax
    from launch.training.objectives import Loss
    from launch.training.platform import check_platform
    from launch.training.precision import PRECISIONS
    from tests.training.tiny_training import batch, tiny_training

    class Sum:
        '''A loss whose gradient is 1 everywhere.'''

        def __call__(self, model, batch, keys):
            table = model.embedding.table[...]
            return Loss(jnp.sum(table.astype(jnp.float32)), jnp.float32(1), {})

    def mean_after_64_steps(precision):
        training = tiny_training(
            jax.devices(), precision, optimizer=optax.sgd(2.0**-10), objective=Sum()
        )
        ones = {path: jnp.ones(p.shape, p.dtype) for path, p in training.state.parameters.items()}
        state = training.start(ones)
        for _ in range(64):
            state, _ = training.step(state, batch())
        return float(np.mean(np.asarray(state.parameters["embedding.table"], np.float64)))
"""
STOCHASTIC = {"NEURONJAX_NUMERICS": "chip", "NEURON_RT_STOCHASTIC_ROUNDING_EN": "1"}


def test_tiny_updates_survive_stochastic_rounding_alone(run_python: RunPython) -> None:
    """Updates of 2^-10 are a quarter of the distance from 1 to the next smaller number of BF16."""
    code = ONES + "\n    print(mean_after_64_steps('NAME'))"
    nearest = run_python(
        code.replace("NAME", "manual"), {"NEURONJAX_NUMERICS": "chip"}, timeout=240
    )
    assert float(nearest.stdout) == 1.0, nearest.stderr
    random = run_python(
        code.replace("NAME", "bf16SR") + "\n    check_platform(PRECISIONS['bf16SR'])",
        STOCHASTIC,
        timeout=240,
    )
    assert random.returncode == 0, random.stderr
    # The standard deviation of a step is at most 2^-9, of the mean of 2048 weights 45 times less.
    deviation = 64**0.5 * 2.0**-9 / 2048**0.5
    assert float(random.stdout) == pytest.approx(1 - 64 * 2.0**-10, abs=5 * deviation)


def test_platform_that_rounds_otherwise_is_refused(
    run_python: RunPython, neuron_devices: list[jax.Device]
) -> None:
    check_platform(PRECISIONS["fp32"])
    check_platform(PRECISIONS["mixed_precision"])
    with pytest.raises(SettingsError, match=r"rounding on, but .*'neuron' rounds to nearest"):
        check_platform(PRECISIONS["mixed_precisionSR"])
    with pytest.raises(SettingsError, match=r"auto-cast on, but .* multiplies FP32 as it is"):
        check_platform(PRECISIONS["autocast"])
    code = """
        from launch.training.platform import check_platform
        from launch.training.precision import PRECISIONS
        from launch.errors import SettingsError
        check_platform(PRECISIONS["mixed_precisionSR"])
        for name in ("mixed_precision", "fp32"):
            try:
                check_platform(PRECISIONS[name])
            except SettingsError as error:
                print(error)
    """
    cast = {"NEURON_CC_FLAGS": "--auto-cast=matmult --auto-cast-type=bf16"}
    messages = run_python(code, STOCHASTIC | cast).stdout.splitlines()
    assert len(messages) == 2
    assert "rounding off, but the platform 'neuron' rounds stochastically. Leave" in messages[0]


def test_platform_is_asked_before_it_starts() -> None:
    environment = {"NEURON_CC_FLAGS": "-O1"}
    prepare_platform(PRECISIONS["bf16SR"], 7, 100, environment)
    assert environment == {
        "NEURON_CC_FLAGS": "-O1",
        "NEURON_RT_STOCHASTIC_ROUNDING_EN": "1",
        "NEURON_RT_STOCHASTIC_ROUNDING_SEED": "7",
        "NEURONJAX_FIRST_RUN": "100",
    }
    environment = {"NEURON_CC_FLAGS": "-O1", "NEURON_RT_STOCHASTIC_ROUNDING_EN": "0"}
    prepare_platform(PRECISIONS["autocast"], 7, 100, environment)
    assert environment["NEURON_CC_FLAGS"] == "-O1 --auto-cast=matmult --auto-cast-type=bf16"
    prepare_platform(PRECISIONS["bf16SR"], 7, 100, environment)
    assert environment["NEURON_RT_STOCHASTIC_ROUNDING_EN"] == "0"


def test_flags_change_single_fields_of_a_recipe() -> None:
    settings = PrecisionSettings(precision="manual", optimizer_use_master_weights=True)
    assert settings.resolve().weights_dtype == "float32"
    assert settings.resolve().accumulation_dtype == "bfloat16"
    for name, recipe in PRECISIONS.items():
        assert PrecisionSettings(precision=name).resolve() == recipe
    with pytest.raises(SettingsError, match="--precision=bf16 is unknown; choose one of fp32, "):
        PrecisionSettings(precision="bf16")


@pytest.mark.slow
def test_quantization_aware_training_is_the_same_on_every_mesh(
    neuron_devices: list[jax.Device],
) -> None:
    """Ranges of weights and activations are those of all cores. Later on a sum's last digit now and
    then decides between two codes."""
    recipe = replace(PRECISIONS["qat_int8"], bf16=False)
    curves = []
    for sizes in ({"data": 1, "model": 1}, {"data": 2, "fsdp": 2, "model": 2}):
        training = tiny_training(neuron_devices, recipe, sizes=sizes)
        state, losses = first_state(training), []
        for number in range(3):
            state, values = training.step(state, batch(number))
            losses.append(float(values["loss"]))
        curves.append(losses)
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-5)


def test_average_of_weights(neuron_devices: list[jax.Device]) -> None:
    training = tiny_training(neuron_devices, "mixed_precision", ema_decay=0.75)
    state = first_state(training)
    expected = jax.tree.map(np.asarray, state.parameters)
    for number in range(3):
        state, _ = training.step(state, batch(number))
        expected = jax.tree.map(
            lambda average, new: 0.75 * average + 0.25 * np.asarray(new), expected, state.parameters
        )
    assert state.average is not None
    for path, average in state.average.items():
        np.testing.assert_allclose(average, expected[path], rtol=1e-6, atol=1e-7)
    found = training.evaluate(state, batch())
    averaged = training.evaluate(state._replace(parameters=state.average), batch())
    assert float(found.total) == float(averaged.total)
    last = training.evaluate(state._replace(average=state.parameters), batch())
    assert float(found.total) != float(last.total)
