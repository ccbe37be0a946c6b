"""`neuronjax.nan_report` on well-known sources of NaN and infinity."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import neuronjax
from neuronjax.errors import ConfigurationError, UnsupportedProgramError
from tests.accuracy.lines import here

X = np.arange(4, dtype=np.float32)
INF = np.inf


def overflow(x):
    return x.astype(np.float16) * 40000


SOURCES = {
    "log of a negative number": (lambda x: jnp.log(x - 1.5), "NaN", "log"),
    "square root of a negative number": (lambda x: jnp.sqrt(x - 2), "NaN", "sqrt"),
    "0/0": (lambda x: x / x, "NaN", "divide"),
    "1/0": (lambda x: 1 / x, "Inf", "divide"),
    "inf - inf": (lambda x: jnp.where(x > 1, INF, x) - jnp.inf, "NaN", "subtract"),
    "0 * inf": (lambda x: x * jnp.asarray(INF), "NaN", "multiply"),
    "log(0)": (lambda x: jnp.log(x), "Inf", "log"),
    "softmax of -inf": (lambda x: jax.nn.softmax(jnp.full((2, 4), -INF) + x), "NaN", "subtract"),
    "softmax of one row": (
        lambda x: jax.nn.softmax(jnp.where(jnp.arange(2)[:, None] > 0, -INF, x)),
        "NaN",
        "subtract",
    ),
    "overflow in FP16": (overflow, "Inf", "multiply"),
    "overflow of a cast": (lambda x: (x * 30000).astype(np.float16), "Inf", "convert"),
    "overflow of a cast to FP8": (
        lambda x: (x * 200).astype(ml_dtypes.float8_e4m3),
        "Inf",
        "convert",
    ),
    "overflow of exp": (lambda x: jnp.exp(x * 40), "Inf", "exponential"),
    "overflow of a sum": (lambda x: jnp.sum(x * 1e38), "Inf", "reduce"),
    "overflow of a matmul": (lambda x: (x * 1e30) @ x * 1e9 * jnp.ones(2), "Inf", "multiply"),
    "gradient of log(0)": (
        jax.grad(lambda x: jnp.log(jnp.sum(jnp.exp(x * 0 - 200)))),
        "Inf",
        "divide",
    ),
    "norm gradient at zero": (jax.grad(lambda x: jnp.sqrt(jnp.sum((x * 0) ** 2))), "Inf", "divide"),
    "a callback": (
        lambda x: jax.pure_callback(
            lambda x: np.full(4, np.nan, np.float32), jax.ShapeDtypeStruct((4,), np.float32), x
        ),
        "NaN",
        "xla_ffi_python_cpu_callback",
    ),
    "cholesky": (lambda x: jnp.linalg.cholesky(-jnp.eye(2)) * x[0], "NaN", "select"),
    "what fills an index out of bounds": (lambda x: jnp.take(x, jnp.array([4])), "NaN", "select"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_source(name):
    function, kind, op = SOURCES[name]
    report = neuronjax.nan_report(function, X)
    assert (report.kind, report.op) == (kind, op)
    assert (report.core, report.cores, report.iterations) == (0, 1, ())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.log(x + 1),
        lambda x: jnp.where(x > 0, jnp.log(jnp.maximum(x, 1)), 0),
        lambda x: jax.nn.softmax(jnp.where(x > 0, x, -INF)),  # a mask
        lambda x: lax.cond(x[0] > 1, lambda: jnp.log(-x), lambda: x),  # not taken
        lambda x: lax.fori_loop(0, 0, lambda i, x: jnp.log(-x), x),  # no iteration
        lambda x: jnp.max(x) + jnp.argmin(x),
        lambda x: jnp.arange(3),
    ],
)
def test_all_finite(function):
    assert neuronjax.nan_report(function, X) is None


def test_operands_results_and_line():
    report = neuronjax.nan_report(lambda x, y: x / y, X - 1, np.float32([0, 1, 0, 2]))  # ratio
    assert report.source == here("ratio")
    assert [str(each) for each in report.operands] == [
        "float32[4]: -1 to 2, 0 NaN, 0 Inf",
        "float32[4]: 0 to 2, 0 NaN, 0 Inf",
    ]
    assert [str(each) for each in report.results] == ["float32[4]: 0 to 1, 0 NaN, 2 Inf"]
    assert str(report).splitlines() == [
        f"divide made the first Inf at {here('ratio')}",
        "  operand 0  float32[4]: -1 to 2, 0 NaN, 0 Inf",
        "  operand 1  float32[4]: 0 to 2, 0 NaN, 0 Inf",
        "  result 0   float32[4]: 0 to 1, 0 NaN, 2 Inf",
    ]


def test_a_nan_that_follows_an_infinity_is_told_too():
    def function(x):
        big = jnp.exp(x * 100)  # big
        return big - big  # then NaN

    report = neuronjax.nan_report(function, X)
    assert (report.kind, report.source) == ("Inf", here("big"))
    assert (report.first_nan.kind, report.first_nan.source) == ("NaN", here("then NaN"))
    record = json.loads(report.to_json())
    assert record["first_nan"]["operands"][0]["infs"] == 3
    assert len(str(report).splitlines()) == 7


def test_iteration_of_a_scan():
    def body(carry, _):
        return carry - 1, jnp.sqrt(carry)  # in scan

    report = neuronjax.nan_report(lambda x: lax.scan(body, x[3], None, length=9), X)
    assert (report.op, report.iterations, report.source) == ("sqrt", (4,), here("in scan"))
    assert report.operands[0].max == -1
    assert "in iteration 4 (from 0)" in str(report)


def test_iterations_of_loops_in_loops():
    def inner(i, j, x):
        return x / jnp.where((i == 2) & (j == 1), 0, 1)

    def function(x):
        def body(state):
            i, x = state
            return i + 1, lax.fori_loop(0, 3, lambda j, x: inner(i, j, x), x)

        return lax.while_loop(lambda state: state[0] < 4, body, (0, x))[1]

    assert neuronjax.nan_report(function, X).iterations == (2, 1)


def test_a_condition_of_a_loop():
    def function(x):
        return lax.while_loop(lambda x: jnp.log(x) < 9, lambda x: x - 1, x[2])

    report = neuronjax.nan_report(function, X)
    assert (report.op, report.iterations) == ("log", (2,))


def test_the_branch_that_is_taken():
    branches = [lambda x: x, lambda x: jnp.log(x - 9), lambda x: jnp.sqrt(x - 9)]  # branches
    report = neuronjax.nan_report(lambda i, x: lax.switch(i, branches, x), 2, X)
    assert (report.op, report.source) == ("sqrt", here("branches"))


def test_the_core_in_shard_map(neuron_devices):
    mesh = Mesh(np.array(neuron_devices[:4]), ("core",))

    def body(x):
        return lax.psum(jnp.log(x - 9 * (lax.axis_index("core") == 2)), "core")  # body

    function = jax.shard_map(
        body, mesh=mesh, in_specs=PartitionSpec("core"), out_specs=PartitionSpec()
    )
    report = neuronjax.nan_report(jax.jit(function), np.ones(8, np.float32))
    assert (report.op, report.core, report.cores) == ("log", 2, 4)
    assert report.source == here("body")
    assert report.operands[0].shape == (2,)
    assert "on core 2 of 4" in str(report)


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "NaN"), (-INF, "Inf")])
def test_an_argument_had_it(value, kind):
    report = neuronjax.nan_report(lambda x: x["a"] + 1, {"a": np.float32([1, value]), "b": X})
    assert (report.kind, report.op, report.source) == (kind, "argument", "args[0]['a']")
    assert str(report).startswith(f"argument holds the first {kind} at args[0]['a']")


def test_a_constant_had_it():
    report = neuronjax.nan_report(lambda x: (x, jnp.where(x > 1, x, -INF)), X)
    assert (report.kind, report.op, report.source) == (
        "Inf",
        "constant",
        "result 1 of the function",
    )


def test_complex_integer_and_narrow_operands():
    report = neuronjax.nan_report(lambda x: lax.complex(x, x) / x, X)
    assert report.results[0].dtype == "complex64"
    report = neuronjax.nan_report(lambda i: i.astype(np.float16) * 7, np.int32([3, 60000]))
    assert (report.op, report.kind) == ("multiply", "Inf")
    report = neuronjax.nan_report(lambda i: i.astype(np.float16), np.int32([3, 70000]))
    assert [str(each) for each in report.operands] == ["int32[2]: 3 to 70000, 0 NaN, 0 Inf"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: neuronjax.nan_report(jnp.log, X, target="gpu"), ConfigurationError, "trn1"),
        (lambda: neuronjax.nan_report(jnp.log, X, seed=1), ConfigurationError, "unknown option"),
        (lambda: neuronjax.nan_report("log", X), TypeError, "callable"),
        (
            lambda: neuronjax.nan_report(
                lambda x: (jax.debug.print("{}", x, ordered=True), x)[1], X
            ),
            UnsupportedProgramError,
            "ordered=True",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
