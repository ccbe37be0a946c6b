"""The Neuron compiler's custom calls against numpy in FP64 and scipy, in every place of a program.

Errors are bounded by half a unit in the last place of the result's type, since it is rounded once,
and by a few units of FP32 at the largest value that occurs, since all before is computed in FP32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo_dialect
from scipy import special, stats

from neuronjax.hlo import module as hlo
from neuronjax.hlo.custom_calls import NATIVE_KERNEL, custom_calls
from neuronjax.hlo.module import TensorSpec
from neuronjax.legalize import custom_calls as ours
from neuronjax.legalize import merge
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.rules.custom_calls import KNOWN_TARGETS
from tests.legalize.chip import lowered, run, run_text
from tests.legalize.custom_call import (
    ALONE,
    BF16,
    EQUALS,
    F16,
    F32,
    GENERATOR,
    IMAGES,
    LINE,
    ROWS,
    U32,
    WEIGHT,
    assert_rounded,
    call,
    half_units,
)


@dataclass(frozen=True)
class Case:
    """One call and what it computes."""

    target: str
    operands: tuple[np.ndarray, ...]
    reference: Callable[..., Any]
    """FP64 arrays -> FP64 results."""
    config: str | None = None

    def call(self, *operands: Any) -> Any:
        expected = self.reference(*(np.ones(operand.shape) for operand in operands))
        kinds = [operands[0].dtype if r.dtype == np.float64 else U32 for r in _tuple(expected)]
        results = [(r.shape, kind) for r, kind in zip(_tuple(expected), kinds, strict=True)]
        return call(self.target, results, self.config, *operands)


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def rms_norm(axis: int) -> Callable[..., np.ndarray]:
    def reference(x: np.ndarray, weight: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
        mean = np.mean(x**2, axis, keepdims=True)
        weight = np.expand_dims(weight, [d for d in range(x.ndim) if d != axis])
        return x / np.sqrt(mean + epsilon) * weight

    return reference


def softmax_gradient(axis: int) -> Callable[..., np.ndarray]:
    def reference(gradient: np.ndarray, output: np.ndarray) -> np.ndarray:
        return output * (gradient - (gradient * output).sum(axis, keepdims=True))

    return reference


def top_k(k: int) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    def reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
        return np.take_along_axis(x, order, -1), order.astype(np.uint32)

    return reference


def index_of(find: Callable[..., np.ndarray], axis: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: find(x, axis).astype(np.uint32)


def positions(mode: str, image: int, result: int) -> np.ndarray:
    """Where the pixels of a line of the result lie on that of the image, in FP64."""
    i = np.arange(result, dtype=np.float64)
    formulas = {
        "00": i * image / result,
        "01": (i + 0.5) * image / result - 0.5,
        "10": i * (image - 1) / max(result - 1, 1),
    }
    return formulas[mode]


def interpolation(mode: str, image: int, result: int) -> np.ndarray:
    """The matrix [result, image] of linear interpolation, by numpy's."""
    line = np.arange(image)
    return np.stack(
        [np.interp(positions(mode, image, result), line, unit) for unit in np.eye(image)], axis=1
    )


def bilinear(mode: str, height: int, width: int) -> Callable[[np.ndarray], np.ndarray]:
    def reference(x: np.ndarray) -> np.ndarray:
        rows = interpolation(mode, x.shape[1], height)
        columns = interpolation(mode, x.shape[2], width)
        return np.einsum("hy,wx,byxc->bhwc", rows, columns, x)

    return reference


def shown(mode: str, image: int, result: int) -> np.ndarray:
    """The matrix [result, image] of nearest neighbours."""
    place = positions(mode, image, result)
    pixels = np.floor(place + 1e-9) if mode == "00" else np.floor(place + 0.5 + 1e-9)
    return np.eye(image)[np.clip(pixels, 0, image - 1).astype(int)]


def nearest(mode: str, height: int, width: int) -> Callable[[np.ndarray], np.ndarray]:
    def reference(x: np.ndarray) -> np.ndarray:
        rows, columns = shown(mode, x.shape[1], height), shown(mode, x.shape[2], width)
        return np.einsum("hy,wx,byxc->bhwc", rows, columns, x)

    return reference


def nearest_gradient(mode: str, height: int, width: int) -> Callable[[np.ndarray], np.ndarray]:
    def reference(gradient: np.ndarray) -> np.ndarray:
        rows = shown(mode, height, gradient.shape[1])
        columns = shown(mode, width, gradient.shape[2])
        return np.einsum("hy,wx,bhwc->byxc", rows, columns, gradient)

    return reference


def product(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return lhs @ rhs


TRANSPOSED = "rhs_contracting_dim=1,tp_degree=1,num_groups=1,use_sb_to_sb=1"
SMALL = np.float64(1e-5)

CASES = {
    "erf": Case("AwsNeuronErf", (LINE,), special.erf),
    "gelu": Case("AwsNeuronGelu", (LINE,), lambda x: x * special.ndtr(x)),
    "gelu by tanh": Case(
        "AwsNeuronGeluApprxTanh", (LINE,),
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "gelu derivative": Case(
        "AwsNeuronGeluBackward", (LINE,), lambda x: special.ndtr(x) + x * stats.norm.pdf(x)
    ),
    "silu": Case("AwsNeuronSilu", (LINE,), lambda x: x * special.expit(x)),
    "silu derivative": Case(
        "AwsNeuronSiluBackward", (LINE,),
        lambda x: special.expit(x) * (1 + x * special.expit(-x)),
    ),
    "rms norm of rows": Case("AwsNeuronRmsNorm", (ROWS, WEIGHT, SMALL), rms_norm(1), "1"),
    "rms norm of columns": Case("AwsNeuronRmsNorm", (ROWS, WEIGHT[:8], SMALL), rms_norm(0), "0"),
    "softmax": Case("AwsNeuronSoftmax", (ROWS,), lambda x: special.softmax(x, 1), "1"),
    "softmax of columns": Case("AwsNeuronSoftmax", (ROWS,), lambda x: special.softmax(x, 0), "0"),
    "softmax gradient": Case(
        "AwsNeuronSoftmaxBackward", (ROWS, special.softmax(ROWS, 1)), softmax_gradient(1), "1"
    ),
    "argmax": Case("AwsNeuronArgMax", (ROWS,), index_of(np.argmax, 1), "1"),
    "argmin of columns": Case("AwsNeuronArgMin", (ROWS,), index_of(np.argmin, 0), "0"),
    "argmax of equal values": Case("AwsNeuronArgMax", (EQUALS,), index_of(np.argmax, 1), "1"),
    "argmax of a vector": Case("AwsNeuronArgMax", (WEIGHT,), index_of(np.argmax, 0), "0"),
    "top k": Case("AwsNeuronTopK", (ROWS,), top_k(5), "5"),
    "top k of equal values": Case("AwsNeuronTopK", (EQUALS,), top_k(32), "32"),
    "matmul of one core": Case("AwsNeuronCollectiveMatmul", (ROWS, ROWS.T), product, ALONE),
    "matmul of one core, transposed": Case(
        "AwsNeuronCollectiveMatmul", (ROWS, ROWS), lambda x, y: x @ y.T, TRANSPOSED
    ),
} | {
    f"{name} {mode} to {size}": Case(target, (IMAGES,), make(mode, *size), mode)
    for name, target, make in [
        ("nearest", "ResizeNearest", nearest), ("bilinear", "ResizeBilinear", bilinear),
    ]
    for mode in ("00", "01", "10") for size in [(6, 15), (4, 1)]
} | {
    f"nearest gradient {mode} of {size}": Case(
        "ResizeNearestGrad", (IMAGES,), nearest_gradient(mode, *size), mode
    )
    for mode in ("00", "01", "10") for size in [(2, 4)]
}  # fmt: skip


def typed(case: Case, dtype: np.dtype) -> tuple[list[np.ndarray], tuple[np.ndarray, ...], float]:
    """Operands of a type, the FP64 results for their exact values, and the largest of all."""
    operands = [np.asarray(operand).astype(dtype) for operand in case.operands]
    exact = [operand.astype(np.float64) for operand in operands]
    results = _tuple(case.reference(*exact))
    return operands, results, max(float(np.max(np.abs(value))) for value in (*exact, *results))


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_meaning(name: str, dtype: np.dtype, neuron_devices: list[jax.Device]) -> None:
    operands, expected, largest = typed(CASES[name], dtype)
    found = jax.jit(CASES[name].call)(*(jax.device_put(o, neuron_devices[1]) for o in operands))
    for ours_, theirs in zip(_tuple(found), expected, strict=True):
        assert ours_.devices() == {neuron_devices[1]}
        assert_rounded(ours_, theirs, largest)


def test_every_target_is_decided() -> None:
    decided = [set(ours.SEMANTICS), set(ours.IDENTITIES), set(ours.REFUSED)]
    assert sum(map(len, decided)) == len(set.union(*decided))
    assert {NATIVE_KERNEL, *set.union(*decided)} >= KNOWN_TARGETS


def test_every_meaning_has_a_case() -> None:
    others = {"QuantizeMX", "ScaledMatmul", "__op$block_scaled_dot"}
    others |= {"AwsNeuronIntMatmult", "AwsNeuronDropoutMaskV1"}
    assert {case.target for case in CASES.values()} | others == set(ours.SEMANTICS)


@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_int_matmul(dtype: Any, neuron_devices: list[jax.Device]) -> None:
    lhs = jax.device_put(GENERATOR.integers(-99, 99, (2, 5, 7)).astype(dtype), neuron_devices[0])
    rhs = GENERATOR.integers(-99, 99, (2, 7, 3)).astype(dtype)
    types = [((2, 5, 3), np.int32)]
    found = jax.jit(lambda x, y: call("AwsNeuronIntMatmult", types, None, x, y))(lhs, rhs)
    np.testing.assert_array_equal(found, np.asarray(lhs).astype(np.int64) @ rhs.astype(np.int64))


def test_dropout_mask(neuron_devices: list[jax.Device]) -> None:
    """One in four is dropped, within five standard deviations; a seed always gives one mask."""
    types, size = [((100, 400), F32)], 40_000
    drop = jax.device_put(np.float32(0.25), neuron_devices[0])
    mask = jax.jit(lambda p, seed: call("AwsNeuronDropoutMaskV1", types, None, p, seed))
    first, again, other = (np.asarray(mask(drop, np.int32(seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    for found in (first, other):
        assert set(np.unique(found)) == {0, 1}
        assert abs(found.mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / size)
    independent = 0.25**2 + 0.75**2
    assert abs((first == other).mean() - independent) < 5 * np.sqrt(independent / size)


def test_indices_of_64_bits(neuron_devices: list[jax.Device]) -> None:
    with jax.enable_x64(True):
        x = jax.device_put(ROWS, neuron_devices[0])
        found = jax.jit(lambda x: call("AwsNeuronArgMax", [((8,), np.int64)], "1", x))(x)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.argmax(ROWS, 1))


def of_a_row(x: jax.Array) -> tuple[jax.Array, ...]:
    """Calls with one operand and with several, with one result and with several: [n, 32]."""
    rows = x.shape[0]
    values, indices = call("AwsNeuronTopK", [((rows, 4), x.dtype), ((rows, 4), U32)], "4", x)
    values, indices = call(
        "AwsNeuronModuleMarkerStart-Forward",
        [(values.shape, values.dtype), (indices.shape, U32)], "", values, indices,
    )  # fmt: skip
    parts = call("AwsNeuronSoftmax", [(values.shape, x.dtype)], "1", values)
    return call("AwsNeuronSilu", [(x.shape, x.dtype)], None, x), parts, indices


def expected_of_a_row(x: np.ndarray) -> tuple[np.ndarray, ...]:
    values, indices = top_k(4)(x)
    return x * special.expit(x), special.softmax(values, 1), indices


def spread(x: np.ndarray, kind: AxisType) -> jax.Array:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,), devices=jax.devices("neuron"))
    return jax.device_put(x, NamedSharding(mesh, P("x")))


def in_scan(x: np.ndarray) -> Any:
    results = jax.jit(lambda x: jax.lax.scan(lambda c, row: (c, of_a_row(row[None])), 0.0, x)[1])(x)
    return [result.squeeze(1) for result in results]


def in_branch(x: np.ndarray) -> Any:
    return jax.jit(lambda x: jax.lax.cond(x[0, 0] < 1e9, of_a_row, lambda x: of_a_row(-x), x))(x)


def in_every_shard(x: np.ndarray) -> Any:
    value = spread(x, AxisType.Explicit)
    mapped = jax.shard_map(of_a_row, mesh=value.sharding.mesh, in_specs=P("x"), out_specs=P("x"))
    return jax.jit(mapped)(value)


def ahead_of_time(x: np.ndarray) -> Any:
    return jax.jit(of_a_row).lower(x).compile()(x)


WAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "eager": lambda x: of_a_row(jnp.asarray(x)),
    "jit": lambda x: jax.jit(of_a_row)(x),
    "ahead of time": ahead_of_time,
    "scan": in_scan,
    "branch": in_branch,
    "shard_map": in_every_shard,
    "partitioned": lambda x: jax.jit(of_a_row)(spread(x, AxisType.Auto)),
}


@pytest.mark.parametrize("way", WAYS)
def test_in_every_place(way: str, neuron_devices: list[jax.Device]) -> None:
    x = ROWS.astype(np.float32)
    for found, expected in zip(WAYS[way](x), expected_of_a_row(x.astype(np.float64)), strict=True):
        assert_rounded(found, expected, largest=np.max(np.abs(x)))


@contextlib.contextmanager
def in_a_mesh() -> Any:
    mesh = jax.make_mesh((8,), ("x",), devices=jax.devices("neuron"))
    with jax.set_mesh(mesh):
        yield


SETTINGS: dict[str, Callable[[], Any]] = {
    "64-bit types": lambda: jax.enable_x64(True),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "low precision": lambda: jax.default_matmul_precision("bfloat16"),
    "NaN checks": lambda: jax.debug_nans(True),
    "leak checks": jax.checking_leaks,
    "without jit": jax.disable_jit,
    "other device": lambda: jax.default_device(jax.devices("neuron")[5]),
    "mesh": in_a_mesh,
    "while tracing": jax.ensure_compile_time_eval,
}


def sensitive(matrix: jax.Array, vector: jax.Array, numbers: jax.Array) -> jax.Array:
    """A function that JAX would trace otherwise, or not at all, under many a setting."""
    return (matrix @ matrix.T + vector * numbers).astype(jnp.int64)


def functions_of(code: bytes) -> list[str]:
    with hlo.context():
        return [str(op) for op in hlo.load(code).body.operations]


@pytest.mark.parametrize("name", SETTINGS)
def test_under_any_setting(name: str) -> None:
    """The user's settings are about his program, not about what a call means."""
    types = [
        TensorSpec((4, 4), F32), TensorSpec((4,), BF16), TensorSpec((4,), np.dtype(np.int64))
    ]  # fmt: skip
    usual = functions_of(merge.lower(sensitive, types))
    assert "HIGHEST" in usual[0]
    case = CASES["rms norm of rows"]
    operands, (expected,), largest = typed(case, F32)
    with SETTINGS[name]():
        assert functions_of(merge.lower(sensitive, types)) == usual
        found = jax.jit(lambda *operands: case.call(*operands))(*operands)
    assert_rounded(found, expected, largest)


def test_of_a_primitive(neuron_devices: list[jax.Device]) -> None:
    """A primitive with a lowering rule of its own, as packages for the device have them."""
    primitive = Primitive("softmax_of_the_device")
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))

    def rule(ctx: Any, x: Any) -> Any:
        config = ir.StringAttr.get('"1"')
        return hlo_dialect.CustomCallOp(
            [x.type], [x], call_target_name="AwsNeuronSoftmax", backend_config=config
        ).results

    mlir.register_lowering(primitive, rule, platform="neuron")
    operands, (expected,), largest = typed(CASES["softmax"], F32)
    x = jax.device_put(operands[0], neuron_devices[0])
    assert_rounded(jax.jit(primitive.bind)(x), expected, largest)


def test_matmul_of_all_cores() -> None:
    """The cores' rows of lhs, gathered, times rhs."""
    lhs, rhs = ROWS.astype(np.float32), GENERATOR.standard_normal((32, 3), dtype=np.float32)
    config = "rhs_contracting_dim=0,tp_degree=8,num_groups=1,use_sb_to_sb=0"

    def multiply(lhs: jax.Array) -> jax.Array:
        return call("AwsNeuronCollectiveMatmul", [((8, 3), F32)], config, lhs, jnp.asarray(rhs))

    value = spread(lhs, AxisType.Auto)
    mapped = jax.shard_map(
        multiply, mesh=value.sharding.mesh, in_specs=P("x"), out_specs=P(), check_vma=False
    )
    expected = lhs.astype(np.float64) @ rhs
    assert_rounded(jax.jit(mapped)(value), expected, largest=np.max(np.abs(expected)))


@pytest.mark.parametrize("target", sorted(ours.IDENTITIES))
def test_identity(target: str) -> None:
    x, y = ROWS.astype(np.float32), np.arange(8, dtype=np.int32)

    def pass_on(x: jax.Array, y: jax.Array) -> Any:
        one = call(target, [(x.shape, x.dtype)], None, x)
        return one, *call(target, [(y.shape, y.dtype), (x.shape, x.dtype)], "count=1", y, one)

    for operands in [(x, y), (spread(x, AxisType.Auto), spread(y, AxisType.Auto))]:
        for found, expected in zip(jax.jit(pass_on)(*operands), (x, y, x), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_identity_of_a_tuple() -> None:
    """The compiler's own form of a marker: one tuple in, one tuple out."""
    pair = "tuple<tensor<2xf32>, tensor<2xf32>>"
    text = f"""module @marked {{
    func.func @main(%a: tensor<2xf32>, %b: tensor<2xf32>) -> tensor<2xf32> {{
      %pair = stablehlo.tuple %a, %b : {pair}
      %start = stablehlo.custom_call @"NeuronBoundaryMarker-Start"(%pair) : ({pair}) -> {pair}
      %end = stablehlo.custom_call @"NeuronBoundaryMarker-End"(%start) : ({pair}) -> {pair}
      %second = stablehlo.get_tuple_element %end[1] : ({pair}) -> tensor<2xf32>
      return %second : tensor<2xf32> }} }}"""
    found = run_text(text, np.zeros(2, F32), np.array([3, 4], F32), cores=1)
    np.testing.assert_array_equal(found, [3, 4])


def silu(x: jax.Array) -> jax.Array:
    return call("AwsNeuronSilu", [(x.shape, x.dtype)], None, x)


def test_one_function_for_equal_calls() -> None:
    def program(x: jax.Array, y: jax.Array) -> Any:
        return silu(silu(x)), silu(y)

    with hlo.context():
        module = hlo.load(lowered(program, np.zeros(3, F32), np.zeros(4, F32)))
        lines = [str(op.location) for op in custom_calls(module, "AwsNeuronSilu".__eq__)]
        ours.expand(module, Policy())
        assert module.operation.verify()
        ops = [op.operation for op in hlo.main_function(module).entry_block.operations]
        calls = [op for op in ops if op.name == "func.call"]
        first, second = "@neuron.AwsNeuronSilu", "@neuron.AwsNeuronSilu_1"
        meaning, *_ = [op for op in module.body.operations if f"@{op.name.value}" == first]
        assert ".py" not in meaning.operation.get_asm(enable_debug_info=True)
        assert [str(op.attributes["callee"]) for op in calls] == [first, first, second]
        assert [str(op.location) for op in calls] == lines


def test_numerics_of_the_chip() -> None:
    """A narrow result is rounded once, whatever the numerics."""
    x, (expected,), largest = typed(CASES["silu"], BF16)
    assert_rounded(run(silu, *x, NEURONJAX_NUMERICS="chip"), expected, largest)


def test_stochastic_rounding() -> None:
    """The one rounding, of the result, is the one that is random."""
    x = np.full(20000, 0.3, BF16)
    environ = {"NEURONJAX_NUMERICS": "chip", "NEURON_RT_STOCHASTIC_ROUNDING_EN": "1"}
    found = run(silu, x, **environ).astype(np.float64)
    exact = float(x[0]) * special.expit(float(x[0]))
    unit = 2 * float(half_units(np.float64(exact), BF16))
    below = np.floor(exact / unit) * unit
    assert set(found) == {below, below + unit}
    spread_of_mean = 0.5 * unit / np.sqrt(len(x))
    assert abs(found.mean() - exact) < 5 * spread_of_mean
