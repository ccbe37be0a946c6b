"""Programs that need more than StableHLO's own ops: libraries, random bits, host callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback, pallas
from jax.experimental.buffer_callback import buffer_callback
from jax.experimental.sparse import linalg as sparse_linalg
from jax.scipy import special
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

GENERATOR = np.random.default_rng(0)
SQUARE = GENERATOR.standard_normal((6, 6), dtype=np.float32)
POSITIVE = SQUARE @ SQUARE.T + 6 * np.eye(6, dtype=np.float32)
ROW = GENERATOR.standard_normal(32, dtype=np.float32)


def doubled_in_place(context: Any, out: Any, x: Any) -> None:
    np.asarray(out)[...] = 2 * np.asarray(x)


def add_one(x: Any, out: Any) -> None:
    out[...] = x[...] + 1


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "cholesky": (jnp.linalg.cholesky, (POSITIVE,)),
    "qr": (jnp.linalg.qr, (SQUARE,)),
    "svd": (jnp.linalg.svd, (SQUARE,)),
    "eigh": (jnp.linalg.eigh, (POSITIVE,)),
    "eig": (jnp.linalg.eig, (SQUARE,)),
    "lu": (lax.linalg.lu, (SQUARE,)),
    "solve": (jnp.linalg.solve, (POSITIVE, SQUARE)),
    "inverse": (jnp.linalg.inv, (POSITIVE,)),
    "determinant": (jnp.linalg.slogdet, (SQUARE,)),
    "triangular solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, lower=True), (POSITIVE, SQUARE)
    ),
    "schur": (jax.scipy.linalg.schur, (SQUARE,)),
    "hessenberg": (jax.scipy.linalg.hessenberg, (SQUARE,)),
    "fft": (jnp.fft.fft, (SQUARE,)),
    "rfft2": (jnp.fft.rfft2, (SQUARE,)),
    "inverse fft": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x)), (ROW,)),
    "sort": (lambda x: (jnp.sort(x), jnp.argsort(x), lax.top_k(x, 5)), (ROW,)),
    "approximate top k": (lambda x: lax.approx_max_k(x, 4), (ROW,)),
    "median": (jnp.median, (ROW,)),
    "error functions": (
        lambda x: (special.erf(x), special.erfc(x), special.erfinv(jnp.tanh(x))), (ROW,)
    ),
    "gamma family": (
        lambda x: (special.gammaln(x), special.digamma(x), special.gammainc(2.0, x**2)), (ROW,)
    ),
    "bessel": (lambda x: (special.i0e(x), special.i1(x)), (ROW,)),
    "betainc": (lambda x: special.betainc(0.5, 2.0, jax.nn.sigmoid(x)), (ROW,)),
    "gelu and its gradient": (jax.vmap(jax.value_and_grad(jax.nn.gelu)), (ROW,)),
    "cumulative": (lambda x: (jnp.cumsum(x), lax.cummax(x), lax.cumlogsumexp(x)), (ROW,)),
    "convolution": (lambda x: jnp.convolve(x, x[:5], mode="same"), (ROW,)),
    "ragged dot": (
        lambda x: lax.ragged_dot(x, x.reshape(2, 3, 6)[:, :, :3].reshape(2, 3, 3).repeat(2, 1),
                                 jnp.array([2, 4], jnp.int32)), (SQUARE,)
    ),
    "sparse solve": (
        lambda data, b: sparse_linalg.spsolve(data, jnp.arange(32), jnp.arange(33), b),
        (ROW + 4, ROW),
    ),
    "buffer callback": (
        lambda x: buffer_callback(doubled_in_place, jax.ShapeDtypeStruct(x.shape, x.dtype))(x),
        (ROW,),
    ),
    "interpreted Pallas kernel": (
        lambda x: pallas.pallas_call(
            add_one, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True
        )(x),
        (ROW,),
    ),
    "custom gradient": (jax.grad(lambda x: jax.nn.logsumexp(x)), (ROW,)),
    "multi platform": (
        lambda x: lax.platform_dependent(x, cpu=lambda x: x + 1, neuron=lambda x: x + 1), (ROW,)
    ),
}  # fmt: skip


def on(device: jax.Device, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    with jax.default_device(device):
        there = [jax.device_put(argument, device) for argument in arguments]
        return jax.tree.leaves(jax.jit(function)(*there))


def assert_same(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    neuron: jax.Device,
    cpu: jax.Device,
) -> None:
    found, expected = on(neuron, function, arguments), on(cpu, function, arguments)
    assert [value.devices() for value in found] == [{neuron}] * len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("name", CASES)
def test_same_as_cpu(
    name: str, neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    assert_same(*CASES[name], neuron_devices[1], cpu_devices[1])


def test_compiled_pallas_kernels_are_refused_as_on_cpu(
    neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    refusals = []
    for device in (neuron_devices[0], cpu_devices[0]):
        kernel = pallas.pallas_call(add_one, out_shape=jax.ShapeDtypeStruct((32,), np.float32))
        with pytest.raises(ValueError, match="Only interpret mode is supported on ") as refusal:
            on(device, kernel, (ROW,))
        refusals.append(str(refusal.value))
    assert "pass interpret=True to pallas_call" in refusals[0]


def test_what_xla_cannot_run_is_refused_as_on_cpu(
    neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    """The status stands once."""
    ones = np.ones(64, np.int32)
    refusals = []
    for devices in (neuron_devices, cpu_devices):
        exchange = jax.shard_map(
            lambda x, n: lax.ragged_all_to_all(x, x, n, n, n, n, axis_name="x"),
            mesh=jax.make_mesh((8,), ("x",), devices=devices),
            in_specs=P("x"),
            out_specs=P("x"),
        )
        with pytest.raises(jax.errors.JaxRuntimeError) as refusal:
            jax.jit(exchange)(spread(devices, ROW[:, None].repeat(2)), spread(devices, ones))
        refusals.append(str(refusal.value))
    assert refusals[0] == refusals[1]


DRAWS: dict[str, Callable[[Any], Any]] = {
    "bits": lambda key: jax.random.bits(key, (4, 3)),
    "uniform": lambda key: jax.random.uniform(key, (17,)),
    "normal in bfloat16": lambda key: jax.random.normal(key, (8,), jnp.bfloat16),
    "choice and permutation": lambda key: (
        jax.random.choice(key, 10, (4,), replace=False), jax.random.permutation(key, 9)
    ),
    "categorical": lambda key: jax.random.categorical(key, jnp.arange(9.0), shape=(5,)),
    "split and fold": lambda key: jax.random.key_data(
        jax.random.fold_in(jax.random.split(key)[1], 7)
    ),
}  # fmt: skip


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_numbers(
    implementation: str,
    draw: str,
    neuron_devices: list[jax.Device],
    cpu_devices: list[jax.Device],
) -> None:
    def run(seed: Any) -> Any:
        return DRAWS[draw](jax.random.key(seed, impl=implementation))

    assert_same(run, (np.uint32(42),), neuron_devices[0], cpu_devices[0])


def spread(devices: list[jax.Device], value: np.ndarray) -> jax.Array:
    mesh = jax.make_mesh((8,), ("x",), devices=devices)
    return jax.device_put(value, NamedSharding(mesh, P("x")))


def doubled(value: np.ndarray) -> np.ndarray:
    return np.asarray(value) * 2


def call_doubled(x: jax.Array) -> jax.Array:
    return jax.pure_callback(doubled, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_pure_callback(neuron_devices: list[jax.Device]) -> None:
    np.testing.assert_array_equal(
        jax.jit(lambda x: call_doubled(x + 1) - 1)(ROW), 2 * (ROW + 1) - 1
    )


def test_pure_callback_of_a_sharded_value(neuron_devices: list[jax.Device]) -> None:
    x = spread(neuron_devices, ROW)
    np.testing.assert_array_equal(jax.jit(call_doubled)(x), 2 * ROW)


def test_pure_callback_in_every_shard(neuron_devices: list[jax.Device]) -> None:
    x = spread(neuron_devices, ROW)
    mapped = jax.shard_map(call_doubled, mesh=x.sharding.mesh, in_specs=P("x"), out_specs=P("x"))
    result = jax.jit(mapped)(x)
    assert result.sharding.spec == P("x")
    np.testing.assert_array_equal(result, 2 * ROW)


def test_callback_in_control_flow_and_under_vmap(neuron_devices: list[jax.Device]) -> None:
    def body(carry: Any, row: Any) -> Any:
        total = carry + jax.pure_callback(
            lambda v: np.asarray(v).sum(), jax.ShapeDtypeStruct((), np.float32), row
        )
        return total, total

    totals = jax.jit(lambda x: lax.scan(body, jnp.float32(0), x)[1])(np.ones((5, 3), np.float32))
    np.testing.assert_array_equal(totals, [3, 6, 9, 12, 15])
    double = jax.vmap(
        lambda v: jax.pure_callback(
            doubled, jax.ShapeDtypeStruct((), np.float32), v, vmap_method="sequential"
        )
    )
    np.testing.assert_array_equal(jax.jit(double)(ROW), 2 * ROW)


def test_callback_may_use_the_platform(neuron_devices: list[jax.Device]) -> None:
    inner = jax.jit(lambda v: v * 3)

    def triple(value: np.ndarray) -> np.ndarray:
        return np.asarray(inner(np.asarray(value)))

    shape = jax.ShapeDtypeStruct(ROW.shape, ROW.dtype)
    result = jax.jit(lambda x: jax.pure_callback(triple, shape, x))(ROW)
    np.testing.assert_array_equal(result, 3 * ROW)


@pytest.mark.parametrize("ordered", [False, True])
def test_io_callback(ordered: bool, neuron_devices: list[jax.Device]) -> None:
    seen: list[int] = []

    def note(value: np.ndarray) -> np.ndarray:
        seen.append(int(value))
        return np.int32(len(seen))

    def count(x: jax.Array) -> list[jax.Array]:
        result = jax.ShapeDtypeStruct((), np.int32)
        return [io_callback(note, result, x + i, ordered=ordered) for i in range(10)]

    counts = jax.jit(count)(np.int32(0))
    jax.effects_barrier()
    assert sorted(seen) == list(range(10))
    assert sorted(int(c) for c in counts) == list(range(1, 11))
    if ordered:
        assert seen == list(range(10))
        jax.jit(count)(np.int32(10))
        jax.effects_barrier()
        assert seen == list(range(20))


def test_debug_print(neuron_devices: list[jax.Device], capsys: pytest.CaptureFixture[str]) -> None:
    @jax.jit
    def shout(x: jax.Array) -> jax.Array:
        jax.debug.print("sum {} of {count}", x.sum(), count=x.size, ordered=True)
        return x

    shout(np.ones(4, np.float32))
    shout(np.zeros(4, np.float32))
    jax.effects_barrier()
    assert capsys.readouterr().out == "sum 4.0 of 4\nsum 0.0 of 4\n"


def test_debug_print_of_a_sharded_value(
    neuron_devices: list[jax.Device], capsys: pytest.CaptureFixture[str]
) -> None:
    jax.jit(lambda x: jax.debug.print("{}", x.sum()))(
        spread(neuron_devices, np.ones(8, np.float32))
    )
    jax.effects_barrier()
    assert set(capsys.readouterr().out.splitlines()) == {"8.0"}
