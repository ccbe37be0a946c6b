"""`neuronjax.compare` against the same mathematics in NumPy, in FP64 and rounded by ml_dtypes."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neuronjax
from neuronjax.accuracy.measure import Error
from neuronjax.errors import (
    ArgumentMismatchError,
    ConfigurationError,
    NonDeterministicError,
    UnknownTargetError,
    UnsupportedProgramError,
)
from tests.accuracy.lines import here
from tests.legalize import chip

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((16, 8)).astype(BF16)
Y = RANDOM.standard_normal((16, 8)).astype(BF16)
SMALL = 2.0**-9
"""Half a unit in the last place of BF16 below 1 + it: 1 + SMALL rounds to 1."""


def exact(array):
    return np.asarray(array, np.float64)


def rounded(values, dtype):
    return values.astype(np.float32).astype(dtype)


def expected_error(values, reference):
    """Norm-wise relative error, greatest relative error and greatest error in ULPs, from NumPy."""
    wrong = np.abs(exact(values) - reference)
    info = ml_dtypes.finfo(values.dtype)
    size = np.maximum(np.abs(reference), exact(info.smallest_normal))
    unit = np.exp2(np.floor(np.log2(size)) - info.nmant)
    return Error(
        np.linalg.norm(wrong) / np.linalg.norm(reference),
        np.max(wrong / size),
        np.max(wrong / unit),
    )


def assert_close(found, expected):
    for name in ("relative", "max_relative", "ulps"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-6), name


ROUNDED_OPS = {
    "multiply": (lambda x, y: x * y, np.multiply, BF16),
    "add": (lambda x, y: x + y, np.add, BF16),
    "divide": (lambda x, y: x / y, np.divide, BF16),
    "negate": (lambda x, y: -x, lambda x, y: -x, BF16),
    "dot_general": (lambda x, y: x @ y.T, lambda x, y: x @ y.T, BF16),
    "reduce": (lambda x, y: lax.reduce_sum_p.bind(x, axes=(0,)), lambda x, y: x.sum(0), BF16),
    "convert": (lambda x, y: x.astype(FP8), lambda x, y: x, FP8),
}


@pytest.mark.parametrize("op", ROUNDED_OPS)
def test_one_op(op):
    function, in_numpy, dtype = ROUNDED_OPS[op]
    (row,) = [row for row in neuronjax.compare(function, X, Y).rows if row.op == op]
    reference = in_numpy(exact(X), exact(Y))
    assert_close(row.local, expected_error(rounded(reference, dtype), reference))
    assert row.accumulated == row.local
    assert (row.visits, row.core, row.iterations) == (1, 0, ())


def test_auto_cast_is_an_error_of_the_matmul():
    x, y = (RANDOM.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    found = neuronjax.compare(lambda x, y: x @ y, x, y, cc_flags="--auto-cast=matmult")
    cast = exact(x.astype(BF16)) @ exact(y.astype(BF16))
    expected = expected_error(cast.astype(np.float32), exact(x) @ exact(y))
    assert found.worst.op == "dot_general"
    assert found.worst.local.relative == pytest.approx(expected.relative, rel=1e-4)


def layer(x, w):
    return jnp.tanh(x @ w)  # tanh


W = (RANDOM.standard_normal((3, 8, 8)) / 3).astype(BF16)


def deep(x, w):
    return lax.scan(lambda x, w: (layer(x, w), None), x, w)[0].sum()


def deep_in_numpy(x, w):
    x = exact(x)
    for each in exact(w):
        x = np.tanh(x @ each)
    return x.sum()


def test_accumulated_error_is_that_of_the_result():
    value = exact(chip.run(deep, X, W, NEURONJAX_NUMERICS="chip"))
    reference = deep_in_numpy(X, W)
    (output,) = neuronjax.compare(deep, X, W).outputs
    assert output.accumulated.relative == pytest.approx(
        abs(value - reference) / abs(reference), rel=1e-6
    )


def test_gradients_through_rematerialisation_and_custom_rules():
    @jax.custom_vjp
    def cube(x):
        return x * x * x

    cube.defvjp(lambda x: (cube(x), x), lambda x, g: (3 * x * x * g,))

    def loss(x):
        return jax.checkpoint(lambda x: jnp.sin(cube(x)))(x).sum()

    x = np.linspace(0.1, 1, 8).astype(np.float16)
    value = exact(chip.run(jax.grad(loss), x, NEURONJAX_NUMERICS="chip"))
    reference = np.cos(exact(x) ** 3) * 3 * exact(x) ** 2
    (output,) = neuronjax.compare(jax.grad(loss), x).outputs
    expected = np.linalg.norm(value - reference) / np.linalg.norm(reference)
    assert output.accumulated.relative == pytest.approx(expected, rel=1e-6)


def test_source_lines_and_cost_by_line():
    found = neuronjax.compare(layer, X, W[0])
    assert {row.source for row in found.rows} == {here("tanh")}
    costs = [row.local.relative for row in found.rows]
    assert found.lines == [(here("tanh"), pytest.approx(np.linalg.norm(costs)))]
    assert found.worst.local.relative == max(costs)


def test_a_loop_tells_the_iteration():
    steps = np.zeros(8, BF16)
    steps[3] = SMALL

    def total(steps):
        return lax.scan(lambda c, step: (c + step, None), jnp.ones((), BF16), steps)[0]

    found = neuronjax.compare(total, steps)
    assert (found.worst.op, found.worst.visits, found.worst.iterations) == ("add", 8, (3,))
    assert found.worst.local.relative == SMALL / (1 + SMALL)
    assert found.worst.local.ulps == 0.25
    assert found.outputs[0].accumulated.relative == SMALL / (1 + SMALL)


def test_loops_in_loops_and_while():
    def nested(x):
        def inner(i, j, c):
            step = jnp.where((i == 1) & (j == 2), SMALL, 0).astype(BF16)
            return lax.optimization_barrier(c + step)

        def body(state):
            i, c = state
            return i + 1, lax.fori_loop(0, 4, lambda j, c: inner(i, j, c), c)

        return lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

    found = neuronjax.compare(nested, np.ones((), BF16))
    assert (found.worst.op, found.worst.visits, found.worst.iterations) == ("add", 12, (1, 2))


@pytest.mark.parametrize(("sign", "op"), [(1.0, "sine"), (-1.0, "cosine")])
def test_only_the_branch_that_is_taken(sign, op):
    def choose(x):
        return lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)

    found = neuronjax.compare(choose, np.full(4, sign, BF16))
    assert {row.op for row in found.rows} & {"sine", "cosine"} == {op}


def test_a_decision_that_falls_otherwise_in_fp64():
    def choose(x):
        return lax.cond(x + jnp.asarray(SMALL, BF16) > 1, jnp.negative, lambda x: x, x)  # choice

    found = neuronjax.compare(choose, np.ones((), BF16))
    (decision,) = found.decisions
    assert (decision.op, decision.source, decision.visits) == ("case", here("choice"), 1)
    assert "went another way" in str(found)


def test_integers_that_follow_from_floats_have_their_own_values():
    """1 + SMALL ties with 1 in BF16: there the first is the greatest, in FP64 the second."""

    def greatest(x):
        return x[jnp.argmax(x + jnp.array([0, SMALL], BF16))] * 1

    found = neuronjax.compare(greatest, np.array([1.0, 1.0], BF16) * np.array([1, 1], BF16))
    assert found.outputs[0].accumulated == Error()
    found = neuronjax.compare(
        lambda x: jnp.array([1.0, 2.0], BF16)[jnp.argmax(x + jnp.array([0, SMALL], BF16))],
        np.ones(2, BF16),
    )
    assert found.outputs[0].accumulated.relative == 0.5


def test_first_divergence_is_the_first_op_beyond_the_threshold():
    def chain(x):
        y = x + jnp.asarray(SMALL, BF16)  # below
        z = (y - 1) * 512  # beyond
        return z + 1

    found = neuronjax.compare(chain, np.ones(4, BF16))
    assert found.rows[0].source == here("below")
    assert found.first_divergence.op == "subtract"
    assert found.first_divergence.source == here("beyond")
    assert neuronjax.compare(chain, np.ones(4, BF16), divergence_ulps=1e9).first_divergence is None


@pytest.fixture(scope="module")
def mesh(neuron_devices):
    return Mesh(np.array(neuron_devices[:4]), ("core",))


def test_shard_map_with_collectives_tells_the_core(mesh):
    spec = PartitionSpec("core")

    def body(x):
        mine = (lax.axis_index("core") == 2).astype(BF16) * jnp.asarray(SMALL, BF16)
        return lax.psum((x + mine).astype(jnp.float32), "core")

    function = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=PartitionSpec()))
    found = neuronjax.compare(function, np.ones(8, BF16))
    assert found.cores == 4
    assert (found.worst.op, found.worst.core, found.worst.visits) == ("add", 2, 4)
    assert found.worst.type == "bf16[2]"
    assert found.outputs[0].accumulated.relative == pytest.approx(SMALL / (4 + SMALL), rel=1e-6)


def test_automatic_partitioning(mesh):
    x = jax.device_put(X, NamedSharding(mesh, PartitionSpec("core")))
    w = jax.device_put(W[0], NamedSharding(mesh, PartitionSpec(None, "core")))

    def function(x, w):
        return layer(x, w).astype(jnp.float32).sum()

    found = neuronjax.compare(function, x, w)
    reference = np.tanh(exact(X) @ exact(W[0])).sum()
    y = rounded(np.tanh(exact(rounded(exact(X) @ exact(W[0]), BF16))), BF16)
    expected = abs(exact(y).sum() - reference) / abs(reference)
    assert found.outputs[0].accumulated.relative == pytest.approx(expected, rel=1e-3)
    assert "all_reduce" in {row.op for row in found.rows}


def test_a_single_core_mesh(neuron_devices):
    mesh = Mesh(np.array(neuron_devices[:1]), ("core",))
    spec = PartitionSpec("core")
    function = jax.shard_map(
        lambda x: lax.psum(x * x, "core"), mesh=mesh, in_specs=spec, out_specs=PartitionSpec()
    )
    found = neuronjax.compare(jax.jit(function), X)
    assert found.worst.op == "multiply"


def test_reference_fp32_forgives_fp32_rounding():
    def function(x):
        return (x / 3).astype(BF16) / 5

    x = np.ones(4, np.float32)
    against_fp32, against_fp64 = (
        [row.local for row in neuronjax.compare(function, x, reference=name).rows]
        for name in ("float32", "float64")
    )
    assert against_fp32[0] == Error()
    assert against_fp64[0].ulps == pytest.approx(1 / 3, rel=1e-6)
    assert against_fp32[-1].relative > 1e-4


@pytest.mark.parametrize("wrap", [jax.jit, nnx.jit, jax.vmap, partial])
def test_functions_of_all_kinds(wrap):
    assert neuronjax.compare(wrap(jnp.sin), np.ones(3, BF16)).worst.op == "sine"


def test_pmap(neuron_devices):
    function = jax.pmap(
        lambda x: lax.psum(jnp.sin(x), "core"), axis_name="core", devices=neuron_devices[:4]
    )
    found = neuronjax.compare(function, np.ones((4, 3), BF16))
    assert (found.cores, found.worst.op) == (4, "sine")


def test_explicit_axes(neuron_devices):
    mesh = jax.make_mesh((4,), ("core",), devices=neuron_devices[:4])
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, PartitionSpec("core")))
        found = neuronjax.compare(lambda x: x * x, x)
    assert (found.cores, found.worst.type) == (4, "bf16[4,8]")


def test_nothing_to_round():
    found = neuronjax.compare(lambda x: x[::-1] + 1, jnp.arange(4))
    assert (found.rows, found.outputs, found.worst, found.first_divergence) == ((), (), None, None)
    assert "no op rounded anything" in str(found)


def test_static_unused_and_donated_arguments_and_keys():
    def function(x, power, unused, key):
        return x**power * jax.random.uniform(key, x.shape)

    jitted = jax.jit(function, static_argnums=1, donate_argnums=0)
    x = jnp.linspace(0, 1, 5)
    found = neuronjax.compare(jitted, x, 3, np.ones(3), jax.random.key(1))
    assert found.worst.local.relative < 1e-6
    assert not x.is_deleted()


def test_text_and_json():
    found = neuronjax.compare(lambda x: (x * 3e38 * x).astype(np.float16), np.ones(2, np.float32))
    lines = str(found).splitlines()
    assert lines[0] == f"{len(found.rows)} ops on trainium2, 1 core, against float64"
    assert lines[1].startswith("worst op          convert f16[2] at ")
    record = json.loads(found.to_json())
    assert record["rows"][-1]["local"]["relative"] == "inf"
    assert [row["op"] for row in record["rows"]] == [row.op for row in found.rows]
    assert {"chip", "reference", "cores", "outputs", "first_divergence", "decisions"} < set(record)


def random_callback(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return x * jax.pure_callback(lambda x: RANDOM.standard_normal(x.shape, x.dtype), shape, x)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (random_callback, {}, r"differ, first at multiply .*test_compare.*Pass random keys"),
        (lambda x: lax.rng_uniform(0.0, 1.0, (4,)) * x, {}, "differ, first at"),
        (lambda x: x * 2, {"stochastic_rounding": True}, "stochastic_rounding=False"),
    ],
)
def test_noise_is_refused(function, options, message):
    with pytest.raises(NonDeterministicError, match=message):
        neuronjax.compare(function, np.ones(4, np.float32), **options)


def test_a_callback_that_always_says_the_same_is_fine():
    def function(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return x * jax.pure_callback(lambda x: np.asarray(x) / 3, shape, x)

    (row,) = neuronjax.compare(function, np.ones(4, np.float32)).rows
    assert row.op == "multiply"
    assert row.local == Error()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: neuronjax.compare(jnp.sin, 1.0, reference="bf16"),
            ConfigurationError,
            "float64, ",
        ),
        (lambda: neuronjax.compare(jnp.sin, 1.0, target="trn9"), UnknownTargetError, "trn2.48xl"),
        (lambda: neuronjax.compare(jnp.sin, 1.0, autocast=1), ConfigurationError, "cc_flags"),
        (
            lambda: neuronjax.compare(jnp.sin, 1.0, cc_flags="--auto-cast=bf16"),
            ConfigurationError,
            "none, matmult, all",
        ),
        (lambda: neuronjax.compare(3, 1.0), TypeError, "callable"),
        (lambda: neuronjax.compare(jnp.sin), TypeError, "argument"),
        (lambda: neuronjax.compare(jnp.sin, "one"), TypeError, "str"),
        (
            lambda: neuronjax.compare(jnp.sin, jax.ShapeDtypeStruct((2,), np.float32)),
            ArgumentMismatchError,
            r"args\[0\] is a jax.ShapeDtypeStruct.*float32\[2\]",
        ),
        (
            lambda: neuronjax.compare(
                lambda x: (jax.debug.print("{}", x, ordered=True), x * 2)[1], 1.0
            ),
            UnsupportedProgramError,
            "remove ordered=True",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
