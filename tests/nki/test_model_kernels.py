"""The kernels of `models.kernels` against what they are documented to compute, in FP64."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax
from models.kernels.blockwise_moe import mixture
from models.kernels.cross_entropy import cross_entropy
from models.kernels.flash_attention import flash_attention
from models.kernels.rms_norm import rms_norm
from models.kernels.rope import rope
from models.kernels.swiglu import swiglu
from tests.conftest import RunPython

EPS = 1e-5
TOLERANCES = {"float32": 2e-5, "bfloat16": 2e-2}
CUSTOM_CALL = "AwsNeuronCustomNativeKernel"


def drawn(dtype: str, *shapes: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def check(dtype: str, results: Any, expected: Any) -> None:
    """That results are as close as their dtype allows, measured by the largest number of each."""
    for result, right in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        assert result.dtype == dtype
        assert result.shape == right.shape
        error = np.abs(np.asarray(result, np.float64) - right).max()
        assert error <= TOLERANCES[dtype] * np.abs(right).max()


def in_fp64(function: Any, *arguments: Any) -> Any:
    """What a function of JAX says for the same numbers in FP64, on the host."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide = [jnp.asarray(np.asarray(argument, np.float64)) for argument in arguments]
        return jax.tree.map(np.asarray, jax.jit(function)(*wide))


def with_gradients(function: Any) -> Any:
    """Its value, and its gradients for all arguments but the last, which is the gradient of the
    value."""

    def valued(*arguments: jax.Array) -> Any:
        value, pull = jax.vjp(function, *arguments[:-1])
        return value, *pull(arguments[-1].astype(value.dtype))

    return valued


def plain_rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + EPS) * scale


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rms_norm(dtype: str) -> None:
    arguments = drawn(dtype, (3, 100, 48), (48,), (3, 100, 48))
    function = jax.jit(with_gradients(lambda x, scale: rms_norm(x, scale, EPS)))
    assert CUSTOM_CALL in function.lower(*arguments).as_text()
    check(dtype, function(*arguments), in_fp64(with_gradients(plain_rms_norm), *arguments))


def test_rms_norm_over_another_axis_is_one_call_of_more_rows() -> None:
    x, scale = drawn("float32", (2, 64, 16), (16,))
    function = jax.jit(jax.vmap(lambda x: rms_norm(x, scale, EPS)))
    text = function.lower(x).as_text()
    assert text.count(CUSTOM_CALL) == 1
    assert "while" not in text
    check("float32", function(x), in_fp64(plain_rms_norm, x, scale))


def plain_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    repeats = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, repeats, axis=2) for x in (key, value))
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / query.shape[-1] ** 0.5
    scores = jnp.where(jnp.tri(query.shape[1], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), value)


def attention_arguments(dtype: str, batch: int, length: int) -> list[jax.Array]:
    """Queries, keys, values and the gradient of the result."""
    many, few = (batch, length, 4, 16), (batch, length, 2, 16)
    return drawn(dtype, many, few, few, many)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_flash_attention(dtype: str) -> None:
    arguments = attention_arguments(dtype, 2, 200)
    function = jax.jit(with_gradients(flash_attention))
    assert function.lower(*arguments).as_text().count(CUSTOM_CALL) == 2
    check(dtype, function(*arguments), in_fp64(with_gradients(plain_attention), *arguments))


def test_flash_attention_over_blocks_of_keys_with_rising_scores() -> None:
    """What was summed before shrinks where a later block has larger scores."""
    query, key, value = (x[:, :, :1] for x in attention_arguments("float32", 1, 640)[:3])
    key = key * jnp.linspace(1, 20, 640)[:, None, None]
    check(
        "float32",
        jax.jit(flash_attention)(query, key, value),
        in_fp64(plain_attention, query, key, value),
    )


def plain_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    own = jnp.take_along_axis(logits, targets.astype(int)[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - own


def test_cross_entropy() -> None:
    logits, gradient = drawn("float32", (2, 30, 50), (2, 30))
    targets = jnp.asarray(np.random.default_rng(1).integers(0, 50, (2, 30)))

    def valued(function: Any, *arguments: jax.Array) -> Any:
        logits, targets, gradient = arguments
        value, pull = jax.vjp(lambda logits: function(logits, targets), logits)
        return value, *pull(gradient)

    arguments = logits, targets, gradient
    function = jax.jit(partial(valued, cross_entropy))
    assert function.lower(*arguments).as_text().count(CUSTOM_CALL) == 2
    check(
        "float32", function(*arguments), in_fp64(partial(valued, plain_cross_entropy), *arguments)
    )


def test_targets_of_padding_may_be_anything() -> None:
    logits, weights = drawn("float32", (3, 50), (3,))
    weights = weights.at[1].set(0.0)

    def total(logits: jax.Array, function: Any, padding: int) -> jax.Array:
        return jnp.sum(weights * function(logits, jnp.array([4, padding, 49])))

    expected = jax.grad(total)(logits, plain_cross_entropy, 0)
    for padding in (-100, 10_000):
        found = jax.jit(jax.grad(partial(total, function=cross_entropy, padding=padding)))(logits)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def plain_rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    low, high, rest = jnp.split(x, [cos.shape[-1], 2 * cos.shape[-1]], axis=-1)
    c, s = (angles[..., None, :] for angles in (cos, sin))
    return jnp.concatenate([low * c - high * s, high * c + low * s, rest], axis=-1)


@pytest.mark.parametrize("angles", [(70, 6), (2, 70, 6)])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rope(dtype: str, angles: tuple[int, ...]) -> None:
    """With the gradients of the angles, too."""
    x, cos, sin, gradient = drawn(dtype, (2, 70, 3, 16), angles, angles, (2, 70, 3, 16))
    arguments = x, cos.astype("float32"), sin.astype("float32"), gradient
    function = jax.jit(with_gradients(rope))
    assert function.lower(*arguments).as_text().count(CUSTOM_CALL) == 2
    value, of_x, *of_angles = function(*arguments)
    right, right_of_x, *right_of_angles = in_fp64(with_gradients(plain_rope), *arguments)
    check(dtype, (value, of_x), (right, right_of_x))
    check("float32", of_angles, right_of_angles)


def plain_swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_swiglu(dtype: str) -> None:
    x, gate, up, down, gradient = drawn(
        dtype, (2, 90, 48), (48, 160), (48, 160), (160, 48), (2, 90, 48)
    )
    arguments = x, gate * 0.2, up * 0.2, down * 0.2, gradient
    function = jax.jit(swiglu)
    assert CUSTOM_CALL in function.lower(*arguments[:-1]).as_text()
    check(dtype, function(*arguments[:-1]), in_fp64(plain_swiglu, *arguments[:-1]))
    results = jax.jit(with_gradients(swiglu))(*arguments)
    check(dtype, results, in_fp64(with_gradients(plain_swiglu), *arguments))


def plain_mixture(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    """Every expert for every token."""
    hidden = jax.nn.silu(jnp.einsum("nd,edf->enf", x, gate)) * jnp.einsum("nd,edf->enf", x, up)
    results = jnp.einsum("enf,efd->end", hidden, down)
    chosen = jax.nn.one_hot(experts.astype(int), len(gate), dtype=x.dtype)
    return jnp.einsum("end,nke,nk->nd", results, chosen, weights)


def test_mixture_of_experts() -> None:
    """One of them has no token, and another more than a block."""
    x, weights, gate, up, down = drawn(
        "float32", (150, 32), (150, 2), (4, 32, 16), (4, 32, 16), (4, 16, 32)
    )
    second = np.where(np.arange(150) % 3, 1, 3)
    experts = jnp.asarray(np.stack([np.zeros(150, int), second], axis=1))
    arguments = x, experts, weights, gate, up, down
    check("float32", jax.jit(mixture)(*arguments), in_fp64(plain_mixture, *arguments))


def test_estimates_have_the_kernel_and_the_compilers_own_code() -> None:
    shapes = [jax.ShapeDtypeStruct((1, 256, 2, 64), jnp.bfloat16)] * 3
    kernel = neuronjax.estimate(flash_attention, *shapes)
    plain = neuronjax.estimate(plain_attention, *shapes)
    assert min(kernel.step_ns, plain.step_ns) > 0
    assert not [line for line in (*kernel.assumed, *plain.assumed) if "host" in line]

    def from_kernels(estimate: Any) -> bool:
        return any("models/kernels/" in part.source for part in estimate.kernels)

    assert from_kernels(kernel)
    assert not from_kernels(plain)


def test_estimates_of_a_kernel_alone_count_its_products() -> None:
    shapes = ((300, 128), (128, 256), (128, 256), (256, 128))
    estimate = neuronjax.estimate(
        swiglu, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    )
    assert estimate.model_flops == 3 * 2 * 300 * 128 * 256
    assert estimate.hardware_flops > estimate.model_flops  # transposes of x


ON_TWO_CORES = """
import jax
import jax.numpy as jnp
from neuronjax import nki

nki.install()
from models.kernels.rms_norm import rms_norm

x = jnp.arange(1.0, 1 + 300 * 16).reshape(300, 16)
function = jax.jit(lambda x: rms_norm(x, jnp.ones(16), 0.0))
print(jax.devices()[0].lnc, jnp.abs((function(x) ** 2).mean(axis=1) - 1).max() < 1e-5)
config = function.lower(x).as_text().split("backend_config = ")[1].split(chr(34))[1]
import base64, json
print(json.loads(base64.b64decode(config))["grid"])
"""


@pytest.mark.parametrize(("lnc", "grid"), [("1", []), ("2", [2])])
def test_kernels_run_on_all_physical_cores(
    lnc: str, grid: list[int], run_python: RunPython
) -> None:
    environment = {"NEURON_LOGICAL_NC_CONFIG": lnc, "JAX_PLATFORMS": "neuron"}
    done = run_python(ON_TWO_CORES, environment)
    assert done.stdout.splitlines() == [f"{lnc} True", str(grid)]
