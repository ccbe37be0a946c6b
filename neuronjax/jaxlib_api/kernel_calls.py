"""The primitive of a call of a kernel: a Python function of arrays, of which a platform can make
something better than a call of Python.

``jax.pure_callback`` does not do: JAX refuses to lower it for a mesh without devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax._src import core, dispatch
from jax._src.interpreters import ad, batching, mlir

from neuronjax.errors import KernelError

KERNEL_CALL = core.Primitive("nki_kernel")
"""The call of a kernel; parameters are ``function``, and ``results``, their abstract values."""


def call(
    function: Callable[..., Any], arrays: Sequence[Any], results: Sequence[Any]
) -> tuple[Any, ...]:
    """``function(*arrays)``, whose results have the shapes and dtypes of `results`.

    Relies on ``core.ShapedArray`` for these.
    """
    types = tuple(core.ShapedArray(result.shape, result.dtype) for result in results)
    return tuple(KERNEL_CALL.bind(*arrays, function=function, results=types))


def _callback(*arrays: Any, function: Callable[..., Any], results: Sequence[Any]) -> Any:
    types = [jax.ShapeDtypeStruct(result.shape, result.dtype) for result in results]
    return jax.pure_callback(function, types, *arrays)


def _one_by_one(
    arrays: Sequence[Any], axes: Sequence[int | None], **parameters: Any
) -> tuple[Any, Any]:
    """Under ``jax.vmap`` calls follow each other."""
    batched = [
        batching.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, axes, strict=True)
        if axis is not None
    ]

    def of_slices(slices: Sequence[Any]) -> Any:
        rest = iter(slices)
        chosen = (a if axis is None else next(rest) for a, axis in zip(arrays, axes, strict=True))
        return KERNEL_CALL.bind(*chosen, **parameters)

    results = jax.lax.map(of_slices, batched)
    return results, [0] * len(results)


def _without_gradient(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> Any:
    name = getattr(parameters["function"], "name", "the kernel")
    raise KernelError(
        f"{name} has no derivative, as no kernel has; give it a gradient with jax.custom_vjp, of "
        "which another kernel or JAX functions compute the parts."
    )


KERNEL_CALL.multiple_results = True
KERNEL_CALL.def_impl(partial(dispatch.apply_primitive, KERNEL_CALL))
KERNEL_CALL.def_abstract_eval(lambda *arrays, function, results: list(results))
batching.primitive_batchers[KERNEL_CALL] = _one_by_one
ad.primitive_jvps[KERNEL_CALL] = _without_gradient
mlir.register_lowering(KERNEL_CALL, mlir.lower_fun(_callback, multiple_results=True))
