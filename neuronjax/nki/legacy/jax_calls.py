"""`jax_neuronx.nki_call`: how JAX called kernels of NKI 0.x that write to arrays they are given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from neuronjax.errors import KernelError, quoted
from neuronjax.nki.legacy import language as nl
from neuronjax.nki.legacy.kernel import LegacyKernel, mark_kernel
from neuronjax.nki.legacy.language import Declared

__all__ = ["nki_call"]


def nki_call(
    function: Callable[..., object],
    *inputs: object,
    out_shape: jax.ShapeDtypeStruct | Sequence[jax.ShapeDtypeStruct],
    grid: int | tuple[int, ...] = (),
    **options: object,
) -> Any:
    """What a kernel, marked or not, writes to the arrays behind its `inputs`: one for each shape
    and dtype in `out_shape`, a tuple or a single one, as the result is. Options of the Neuron
    compiler have no effect.

    KernelError: `out_shape` has no shape and dtype.
    """
    is_one = not isinstance(out_shape, tuple | list)
    shapes = [out_shape] if is_one else list(out_shape)
    for shape in shapes:
        if not (hasattr(shape, "shape") and hasattr(shape, "dtype")):
            raise KernelError(
                f"nki_call takes out_shape={quoted(out_shape)} for no shape and dtype; pass a "
                "jax.ShapeDtypeStruct, or a tuple of them. A kernel that returns its results is "
                "called as a function, without nki_call."
            )
    kernel = mark_kernel(_returning(function, shapes))
    results = (kernel[grid] if grid else kernel)(*inputs)
    return results[0] if is_one else results


def _returning(
    function: Callable[..., object], shapes: Sequence[jax.ShapeDtypeStruct]
) -> Callable[..., tuple[Declared, ...]]:
    """A kernel that makes its results, lets `function` write to them, and returns them."""
    inner: Callable[..., object] = (
        function.func if isinstance(function, functools.partial) else function
    )
    if isinstance(inner, LegacyKernel):
        inner = inspect.unwrap(inner.function)

    @functools.wraps(inner)
    def call(*inputs: object) -> tuple[Declared, ...]:
        results = [
            nl.ndarray(shape.shape, dtype=shape.dtype, buffer=nl.shared_hbm) for shape in shapes
        ]
        function(*inputs, *results)
        return tuple(results)

    only_inputs = inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)
    call.__signature__ = inspect.Signature([only_inputs])  # type: ignore[attr-defined]
    return call
