"""Products whose results stay in FP32, though their operands are narrower."""

from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def einsum_fp32(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """`jnp.einsum` of two arrays, added up and returned in FP32.

    Every letter must stand in two of the three terms. In the backward pass the gradient is rounded
    to the dtype of the operands first, so that its products are of narrow operands too.
    """
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _forward(
    subscripts: str, a: jax.Array, b: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return einsum_fp32(subscripts, a, b), (a, b)


def _backward(
    subscripts: str, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    a, b = operands
    terms, result = subscripts.split("->")
    of_a, of_b = terms.split(",")
    to_a = einsum_fp32(f"{result},{of_b}->{of_a}", gradient.astype(b.dtype), b)
    to_b = einsum_fp32(f"{result},{of_a}->{of_b}", gradient.astype(a.dtype), a)
    return to_a.astype(a.dtype), to_b.astype(b.dtype)


einsum_fp32.defvjp(_forward, _backward)
