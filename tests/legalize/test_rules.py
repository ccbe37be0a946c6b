"""Every rule matches what it is for, and nothing else."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.interpreters import mlir

from neuronjax.errors import LegalityError
from neuronjax.hlo import module as hlo
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.report import LegalityWarning, check, findings
from neuronjax.legalize.rules import RULES

X = jnp.ones((4, 4))


def _unknown_custom_call(x):
    return jax.ffi.ffi_call("nobody_knows_this", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


REFUSED = {
    "linear algebra (cholesky, triangular solve, LAPACK routines)": (
        lambda x: jnp.linalg.cholesky(x + 4 * jnp.eye(4))
    ),
    "FFT": lambda x: jnp.fft.fft(x),
    "complex numbers": lambda x: jax.lax.complex(x, x),
    "FP8 types of the FNUZ family": lambda x: x.astype(jnp.float8_e4m3fnuz),
    "a random bit generator other than RNG_DEFAULT": (
        lambda x: jax.lax.rng_bit_generator(
            jnp.zeros((4,), jnp.uint32),
            (4,),
            algorithm=jax.lax.RandomAlgorithm.RNG_THREE_FRY,
        )[1]
    ),
    "host callbacks (jax.debug, pure_callback, io_callback)": (
        lambda x: jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((4, 4), np.float32), x)
    ),
    "a custom call the compiler does not know": _unknown_custom_call,
    "lax.cond and lax.switch": lambda x: jax.lax.cond(x[0, 0] > 0, lambda: 1.0, lambda: 2.0),
    "reduce_precision": lambda x: jax.lax.reduce_precision(x, 5, 2),
    "reductions of several operands": lambda x: jnp.argmax(x),
    "64-bit floating point": lambda x: x.astype(jnp.float64),
}

LEGAL = {
    "matmul and softmax": lambda x: jax.nn.softmax(x @ x),
    "scan": lambda x: jax.lax.scan(lambda c, r: (c + r, c * r), x[0], x)[1],
    "sort and top_k": lambda x: (jnp.sort(x), jax.lax.top_k(x, 2)[0].sum()),
    "gather": lambda x: x[jnp.array([0, 2])],
}


def _module(function, x64=False):
    with jax.enable_x64(x64):
        return jax.jit(function).trace(X).lower(lowering_platforms=("neuron",)).compiler_ir()


def _found(function, x64=False):
    code = mlir.module_to_bytecode(_module(function, x64))
    with hlo.context():
        return findings(hlo.load(code))


def test_every_rule_has_a_program():
    assert {rule.what for rule in RULES} == set(REFUSED)


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    found = _found(REFUSED[what], x64=what == "64-bit floating point")
    assert what in {finding.rule.what for finding in found}


@pytest.mark.parametrize("what", LEGAL)
def test_legal(what):
    assert _found(LEGAL[what]) == []


def test_modes():
    code = mlir.module_to_bytecode(_module(REFUSED["lax.cond and lax.switch"]))
    with hlo.context():
        module = hlo.load(code)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(module, Policy(legality="off"))
        with pytest.warns(LegalityWarning, match=r"NCC_EVRF001.*test_rules\.py:\d+"):
            check(module, Policy(legality="warn"))
        with pytest.raises(LegalityError, match=r"would not compile.*\n.*cond"):
            check(module, Policy(legality="strict"))
