"""The meanings of the Neuron compiler's custom calls for activations, norms and reductions.

A meaning turns a call's types and configuration into an ordinary function of jax.numpy. Everything
is computed in FP32 and rounded once, to the result's type (Neuron docs, NKI ISA, "activation",
"tensor_tensor": engines compute in FP32 internally). Operand orders and configurations are those
that torch-neuronx and transformers-neuronx use; the compiler's documentation only gives the names
(error page EVRF015). Infinities and NaN follow from the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.errors import UnsupportedProgramError
from neuronjax.legalize.call import Call, Function, wide
from neuronjax.rounding import JAX, random_bits


def _pointwise(formula: Function) -> Callable[[Call], Function]:
    """The meaning of a call that applies a formula to every element of its single operand."""

    def meaning(call: Call) -> Function:
        call.expect_operands("input")
        call.expect_floats()
        return lambda x: formula(wide(x))

    return meaning


def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def _gelu_tanh(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


def _gelu_derivative(x: jax.Array) -> jax.Array:
    """d/dx x Φ(x) = Φ(x) + x φ(x), with the normal distribution's Φ and φ."""
    distribution = 0.5 * lax.erfc(x * -math.sqrt(0.5))
    return distribution + x * jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _silu_derivative(x: jax.Array) -> jax.Array:
    """d/dx x σ(x) = σ(x) (1 + x σ(-x))."""
    return jax.nn.sigmoid(x) * (1 + x * jax.nn.sigmoid(-x))


erf = _pointwise(lax.erf)
gelu = _pointwise(_gelu)
"""x Φ(x), the form with the error function."""
gelu_tanh = _pointwise(_gelu_tanh)
gelu_backward = _pointwise(_gelu_derivative)
"""The derivative of GELU alone: the caller multiplies by the gradient (torch-neuronx)."""
silu = _pointwise(jax.nn.silu)
silu_backward = _pointwise(_silu_derivative)
"""The derivative of SiLU alone, by analogy with GELU's: no public source has this call."""


def rms_norm(call: Call) -> Function:
    """(input, weight, epsilon): x / sqrt(mean(x²) + epsilon) * weight along a dimension.

    ``weight`` has that dimension alone, ``epsilon`` is a scalar; backend_config is the dimension.
    """
    x, weight, epsilon = call.expect_operands("input", "weight", "epsilon")
    call.expect_floats()
    axis = call.axis(len(x.shape))
    if weight.shape != (x.shape[axis],):
        raise UnsupportedProgramError(
            f"has a weight of shape {weight.shape}; along dimension {axis} of an input of shape "
            f"{x.shape} it must be ({x.shape[axis]},)"
        )
    if epsilon.shape != ():
        raise UnsupportedProgramError(f"has an epsilon of shape {epsilon.shape}, not a scalar")
    along = [-1 if dimension == axis else 1 for dimension in range(len(x.shape))]

    def function(x: jax.Array, weight: jax.Array, epsilon: jax.Array) -> jax.Array:
        x = wide(x)
        mean = jnp.mean(x * x, axis, keepdims=True)
        return x * lax.rsqrt(mean + wide(epsilon)) * wide(weight).reshape(along)

    return function


def softmax(call: Call) -> Function:
    """(logits): softmax along the dimension in backend_config, with the maximum subtracted."""
    (x,) = call.expect_operands("logits")
    call.expect_floats()
    axis = call.axis(len(x.shape))
    return lambda x: jax.nn.softmax(wide(x), axis)


def softmax_backward(call: Call) -> Function:
    """(gradient, output): output * (gradient - sum(gradient * output)) along a dimension.

    In the order of torch-neuronx, the gradient of the output first.
    """
    gradient, _ = call.expect_operands("gradient", "output")
    call.expect_floats()
    call.expect_same_shape()
    axis = call.axis(len(gradient.shape))

    def function(gradient: jax.Array, output: jax.Array) -> jax.Array:
        gradient, output = wide(gradient), wide(output)
        return output * (gradient - jnp.sum(gradient * output, axis, keepdims=True))

    return function


def _index_of(find: Function) -> Callable[[Call], Function]:
    """The meaning of a call that finds an index along the dimension in backend_config.

    The first of equal values counts, and NaN counts as the extreme, as in jax.numpy; neither is
    documented.
    """

    def meaning(call: Call) -> Function:
        (x,) = call.expect_operands("input")
        axis = call.axis(len(x.shape))
        if x.shape[axis] == 0:
            raise UnsupportedProgramError(f"has no elements along dimension {axis}")
        return lambda x: find(x, axis, jnp.int32)

    return meaning


arg_max = _index_of(lax.argmax)
arg_min = _index_of(lax.argmin)


def top_k(call: Call) -> Function:
    """(input): the k largest along the last dimension, in descending order, and their indices.

    backend_config is k. Of equal values the lower index comes first, as in ``jax.lax.top_k``.
    """
    (x,) = call.expect_operands("input")
    k = call.whole_number("the number of elements to take")
    if not x.shape or k > x.shape[-1]:
        raise UnsupportedProgramError(
            f"takes {k} elements along the last dimension of shape {x.shape}; take fewer"
        )
    return lambda x: tuple(lax.top_k(x, k))


def int_matmul(call: Call) -> Function:
    """(lhs, rhs): the matmul of integers [..., m, k] and [..., k, n].

    The operands are not documented; this is what the name suggests. It is computed in FP32, as all
    matmuls of integers are, unless ``--implicit-integer-downcast`` forbids that.
    """
    lhs, rhs = call.expect_operands("lhs", "rhs")
    for spec in (lhs, rhs):
        if not jnp.issubdtype(spec.dtype, jnp.integer):
            raise UnsupportedProgramError(
                f"has an operand of type {spec.dtype.name}; use jax.numpy.matmul for other types "
                "than integers"
            )
    fits = len(lhs.shape) == len(rhs.shape) >= 2 and lhs.shape[:-2] == rhs.shape[:-2]
    if not fits or lhs.shape[-1] != rhs.shape[-2]:
        raise UnsupportedProgramError(
            f"multiplies shapes {lhs.shape} and {rhs.shape}; they must be [..., m, k] and "
            "[..., k, n] with equal leading dimensions, so use jax.lax.dot_general"
        )
    result = call.results[0].dtype
    return lambda lhs, rhs: jnp.matmul(lhs, rhs, preferred_element_type=result)


def dropout_mask(call: Call) -> Function:
    """(probability, seed): 1 where an element is kept, 0 where it is dropped with ``probability``.

    Operands and generator are not documented. These two scalars, a float and an integer, and a
    stateless hash of seed and element number, are a convention of this project. The same seed
    gives the same mask.
    """
    probability, seed = call.expect_operands("probability", "seed")
    is_float = jnp.issubdtype(probability.dtype, jnp.floating)
    if not is_float or not jnp.issubdtype(seed.dtype, jnp.integer):
        raise UnsupportedProgramError(
            f"has operands of types {probability.dtype.name} and {seed.dtype.name}; make them a "
            "float, the probability to drop, and an integer, the seed"
        )
    if (probability.shape, seed.shape) != ((), ()):
        raise UnsupportedProgramError(
            f"has operands of shapes {probability.shape} and {seed.shape}; make them scalars"
        )
    shape = call.results[0].shape

    def function(probability: jax.Array, seed: jax.Array) -> jax.Array:
        numbers = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
        random = random_bits(JAX, numbers, jnp.broadcast_to(seed.astype(jnp.uint32), shape))
        uniform = (random >> 8).astype(jnp.float32) * 2.0**-24
        return uniform >= probability.astype(jnp.float32)

    return function
