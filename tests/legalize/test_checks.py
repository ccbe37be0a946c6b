"""Checks for NaN and for indices out of bounds: what trips them, where, and what they cost."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.errors import NumericalError, OutOfBoundsError
from neuronjax.hlo import module as hlo
from neuronjax.runtime import executable
from tests.accuracy.lines import here
from tests.legalize import chip
from tests.runtime.conftest import compile_options

X = np.arange(4, dtype=np.float32)
NARROW = X.astype(jnp.bfloat16)
NAN_MAKERS = {
    "log": (lambda x: jnp.log(x - 1.5), X),
    "0/0": (lambda x: x / x, X),
    "0/0 in bf16": (lambda x: x / x, NARROW),
    "inf - inf": (lambda x: x / 0 - jnp.inf, X + 1),
    "inf - inf of an argument": (lambda x: x - x, X + np.float32(np.inf)),
    "hidden by where": (lambda x: jnp.where(x > 0, jnp.log(x - 0.5), 0), X),
    "a float8 without infinity": (lambda x: (x * 1000).astype(jnp.float8_e4m3fn), X),
    "complex": (lambda x: lax.complex(x, x) / x, X),
    "scan": (lambda x: lax.scan(lambda c, r: (c - 1, jnp.sqrt(c)), x[3], None, length=9), X),
    "loop in loop": (
        lambda x: lax.fori_loop(
            0, 3, lambda i, x: lax.fori_loop(0, 3, lambda j, x: jnp.sqrt(x - 1), x), x
        ),
        X,
    ),
    "condition of a loop": (
        lambda x: lax.while_loop(lambda x: jnp.log(x) < 9, lambda x: x - 1, x[2]),
        X,
    ),
    "first condition of a loop": (
        lambda x: lax.while_loop(lambda x: jnp.log(x) > 9, lambda x: x - 1, x[0] - 1),
        X,
    ),
    "branch": (lambda x: lax.cond(x[0] < 1, lambda x: jnp.log(x - 9), lambda x: x, x), X),
    "branch in scan": (
        lambda x: lax.scan(
            lambda c, r: (c, lax.cond(r > 2, lambda r: jnp.sqrt(-r), lambda r: r, r)), 0.0, x
        ),
        X,
    ),
    "gradient": (jax.grad(lambda x: jnp.sum(jnp.sqrt(x) * 0)), X),
}
NAN_FREE = {
    "numbers": (lambda x: jnp.log(x + 1), X),
    "infinities": (lambda x: jnp.log(x) + jnp.exp(x * 100), X),
    "NaN from before": (lambda x: jnp.sqrt(x * 2 + 1), X * np.float32(np.nan)),
    "a NaN that is written": (lambda x: jnp.where(x > 1, x, jnp.nan), X),
    "branch not taken": (lambda x: lax.cond(x[0] > 1, lambda: jnp.log(x - 9), lambda: x), X),
    "loop without iteration": (lambda x: lax.fori_loop(0, 0, lambda i, x: jnp.log(x - 9), x), X),
    "branch without ops": (lambda x: lax.cond(x[0] < 1, lambda: x, lambda: jnp.log(x - 9)), X),
    "condition of a loop": (
        lambda x: lax.while_loop(lambda x: jnp.log(x + 1) < 2, lambda x: x + 1, x[2]),
        X,
    ),
    "masked softmax": (lambda x: jax.nn.softmax(jnp.where(x > 0, x, -jnp.inf)), X),
    "integers": (lambda x: x // 2, np.arange(4, dtype=np.int32)),
    "nothing to check": (lambda x: x[::-1], X),
}


@cache
def machine(**environ):
    return chip.client(**environ)


def compiled(function, *arguments, **environ):
    return machine(**environ).compile(chip.lowered(function, *arguments), compile_options())


def run(program, arguments, **environ):
    """The error of one run on one core; ``None`` if there is none."""
    on = machine(**environ)
    values = [on.put(np.asarray(each), on.devices[0], "device") for each in arguments]
    results, _ = program.execute(values, frozenset())
    return results[0].error


def outcome(function, *arguments, **environ):
    return run(compiled(function, *arguments, **environ), arguments, **environ)


NAN = {"NEURON_FAIL_ON_NAN": "1"}
INDEX = {"NEURONJAX_FAIL_ON_OUT_OF_BOUNDS": "1"}


@pytest.mark.parametrize("numerics", ["chip", "ieee"])
@pytest.mark.parametrize("name", NAN_MAKERS)
def test_nan_ends_the_run(name, numerics):
    error = outcome(*NAN_MAKERS[name], **NAN, NEURONJAX_NUMERICS=numerics)
    assert isinstance(error, NumericalError)


@pytest.mark.parametrize("name", NAN_FREE)
def test_no_nan_no_error(name):
    assert outcome(*NAN_FREE[name], **NAN) is None


def test_message_of_nan():
    def ratio(x):
        return x + 1, x / x

    error = outcome(ratio, X, NEURON_RT_NUMERICAL_ERRORS_VERBOSITY="critical")
    assert str(error).startswith(
        "NRT_EXEC_COMPLETED_WITH_NUM_ERR (status 1003): program 'jit_ratio' produced NaN from "
        "numbers: result 1, f32[4], has NaN. No argument had any. neuronjax.nan_report(function"
    )


def test_message_of_nan_that_gets_lost():
    def guarded(x):
        y = jnp.sqrt(x - 2)
        return jnp.where(x > 2, y, 0)  # where it is lost

    error = outcome(guarded, X, **NAN)
    place = here("where it is lost")
    assert f"from numbers: NaN reached select f32[4] at {place} on core 0 of 1. No" in str(error)


def test_several_results():
    error = outcome(lambda x: (x / x, x, x - 1, jnp.log(x - 5).astype(jnp.bfloat16)), X, **NAN)
    assert "result 0, f32[4], has NaN (and results 3)." in str(error)


LOSING = {
    "select": lambda y: jnp.where(X > 9, y, 0),
    "compare": lambda y: y > 0,
    "is_finite": lambda y: jnp.isfinite(y),
    "clamp": lambda y: lax.clamp(0.0, y, 1.0) > 0,
    "convert": lambda y: y.astype(jnp.int32),
    "bitcast_convert": lambda y: lax.bitcast_convert_type(y, jnp.int32),
    "power": lambda y: lax.pow(y, jnp.zeros(4)),
    "real": lambda y: lax.real(lax.complex(X * 0, y)),
    "slice": lambda y: y[3:],
    "dynamic_slice": lambda y: lax.dynamic_slice(y, (jnp.argmax(X),), (1,)),
    "dynamic_update_slice": lambda y: lax.dynamic_update_slice(y, jnp.ones(3), (0,)),
    "gather": lambda y: y[jnp.array([3])],
    "scatter": lambda y: y.at[jnp.array([0, 1, 2])].set(0),
    "reduce_window": lambda y: lax.reduce_window(y, 0.0, lax.add, (1,), (3,), ((0, 0),))[1:],
    "reduce": lambda y: jnp.argmax(y),
    "top_k": lambda y: lax.top_k(y, 1)[1],
    "custom_call": lambda y: jnp.linalg.qr(jnp.diag(y))[0] * 0 > 1,
}


@pytest.mark.parametrize("op", LOSING)
def test_nan_is_seen_before_it_gets_lost(op):
    function = LOSING[op]
    error = outcome(lambda x: function(jnp.log(x - 2.5)), X, **NAN)
    assert isinstance(error, NumericalError)


IN, OUT, NEGATIVE, TOO_NEGATIVE = (
    np.array(pair, np.int32) for pair in ([0, 3], [0, 4], [-1, -4], [0, -5])
)
INSIDE = (IN, NEGATIVE)
ALL = (IN, OUT, NEGATIVE, TOO_NEGATIVE)
INDEXING = {
    "x[i]": (lambda x, i: x[i], INSIDE),
    "get clip": (lambda x, i: x.at[i].get(mode="clip"), INSIDE),
    "get fill": (lambda x, i: x.at[i].get(mode="fill"), INSIDE),
    "get clipped before": (lambda x, i: x[jnp.clip(i, 0, 3)], ALL),
    "get promised": (lambda x, i: x.at[i].get(mode="promise_in_bounds"), INSIDE),
    "take": (lambda x, i: jnp.take(x, i), INSIDE),
    "take_along_axis": (lambda x, i: jnp.take_along_axis(x, i, 0), INSIDE),
    "set drop": (lambda x, i: x.at[i].set(1, mode="drop"), INSIDE),
    "set clip": (lambda x, i: x.at[i].set(1, mode="clip"), ALL),
    "add": (lambda x, i: x.at[i].add(1), INSIDE),
    "x[scalar]": (lambda x, i: x[i[1]], INSIDE),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i[1],), (1,)), INSIDE),
    "dynamic_slice of two": (lambda x, i: lax.dynamic_slice(x, (i[1] - 1,), (2,)), (IN,)),
    "dynamic_update_slice": (
        lambda x, i: lax.dynamic_update_slice(x, jnp.ones(1), (i[1],)),
        INSIDE,
    ),
    "rows": (lambda x, i: jnp.stack([x, x]).T[i], INSIDE),
    "pairs": (lambda x, i: jnp.stack([x, x])[jnp.array([0, 1]), i], INSIDE),
    "small integers": (lambda x, i: x[i.astype(np.int8)], INSIDE),
    "unsigned integers": (lambda x, i: x[(i + 0).astype(np.uint32)], (IN,)),
    "in scan": (lambda x, i: lax.scan(lambda c, i: (c, x[i]), 0, i)[1], INSIDE),
    "gradient": (lambda x, i: jax.grad(lambda x: jnp.sum(x[i] ** 2))(x), INSIDE),
}


@pytest.mark.parametrize("name", INDEXING)
def test_an_index_out_of_bounds_ends_the_run(name):
    function, fine = INDEXING[name]
    program = compiled(function, X, IN, **INDEX)
    errors = [run(program, (X, indices), **INDEX) for indices in ALL]
    kinds = [type(None) if any(each is i for i in fine) else OutOfBoundsError for each in ALL]
    assert [type(error) for error in errors] == kinds


def test_message_of_an_index():
    def lookup(x, i):
        return x[i]  # lookup

    error = outcome(lookup, X, OUT, **INDEX)
    assert str(error).startswith(
        "NRT_EXEC_OOB (status 1006): failed to run scatter/gather (indirect memory copy via vector "
        f"DGE), due to out-of-bound access: gather f32[4] at {here('lookup')} in program "
        "'jit_lookup' on core 0 of 1. Correct the indices"
    )


def test_the_first_of_several_is_told():
    def function(x, i):
        y = x[i]  # first
        return jnp.log(y - 9)

    program = compiled(function, X, IN, **NAN, **INDEX)
    assert here("first") in str(run(program, (X, OUT), **NAN, **INDEX))
    assert isinstance(run(program, (X, IN), **NAN, **INDEX), NumericalError)


def test_checks_cost_nothing_unless_asked_for():
    off, on = (
        compiled(lambda x: jnp.log(x)[jnp.array([0, 1])], X, **environ).program
        for environ in ({}, NAN)
    )
    assert off.checks is None
    assert off.as_seen() is off.per_core
    assert [check.op for check in on.checks.places] == ["gather f32[4]"]
    with hlo.context():
        seen, plain, whole = (
            hlo.signature(hlo.load(code)) for code in (on.as_seen(), off.per_core, on.per_core)
        )
    assert seen == plain
    flags = hlo.TensorSpec((3,), np.dtype(np.int32))
    assert whole.result_types == (*plain.result_types, flags)


def test_checks_survive_serialization():
    program = compiled(lambda x: jnp.log(x - 9), X, **NAN)
    options = compile_options().SerializeAsString()
    data = executable.serialize(program.program, program.host, options)
    loaded = machine(**NAN).load(data, None)
    assert loaded.program.checks == program.program.checks
    assert isinstance(run(loaded, (X,), **NAN), NumericalError)


def test_values_hand_their_error_on():
    on = machine(**NAN)
    reverse = compiled(lambda x: x[::-1], X, **NAN)
    (failed,), _ = compiled(lambda x: jnp.log(x - 9), X, **NAN).execute(
        [on.put(X, on.devices[0], "device")], frozenset()
    )
    (after,), _ = reverse.execute([failed], frozenset())
    copied = on.copy(after, 0, on.devices[1], "device")
    gathered = on.gather([(after, 0), (copied, 0)], on.host.placement((0, 1)))
    assert isinstance(failed.error, NumericalError)
    assert {id(each.error) for each in (after, copied, gathered)} == {id(failed.error)}
    assert run(reverse, (X,), **NAN) is None
