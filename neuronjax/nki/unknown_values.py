"""What Python cannot do with a tensor while a kernel is traced, as it has no values then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki.tracing import current, is_tracing


def _refused(what: str, instead: str) -> Callable[..., Any]:
    def refuse(self: object, *others: object, **keywords: object) -> NoReturn:
        place = f"{current().line()}: " if is_tracing() else ""
        raise UnsupportedProgramError(
            f"{place}{self!r} {what}, as its values are not known when the kernel is traced; use "
            f"{instead}."
        )

    return refuse


def _without(operator: str, instead: str) -> Callable[..., Any]:
    return _refused(f"has no operator {operator}", instead)


_LOADED = "nisa.register_load for a number, or nl.where for a choice of values"
refuse_truth = _refused("is neither true nor false", _LOADED)
"""What Python gets that asks whether a tensor is true."""

_INSTRUCTIONS = "functions of nki.language or nki.isa"


class UnknownValues:
    """The base of tensors. Every operator says what to use in its place."""

    __add__ = __radd__ = _without("+", "nl.add or nisa.tensor_tensor")
    __sub__ = __rsub__ = _without("-", "nl.subtract or nisa.tensor_tensor")
    __mul__ = __rmul__ = _without("*", "nl.multiply or nisa.tensor_tensor")
    __truediv__ = __rtruediv__ = _without("/", "nl.divide or nisa.reciprocal")
    __floordiv__ = __rfloordiv__ = _without("//", "nl.divide and nl.floor")
    __mod__ = __rmod__ = _without("%", "nl.divide, nl.floor and nl.subtract")
    __pow__ = __rpow__ = _without("**", "nl.power or nl.square")
    __matmul__ = __rmatmul__ = _without("@", "nl.matmul or nisa.nc_matmul")
    __and__ = __rand__ = _without("&", "nl.bitwise_and or nl.logical_and")
    __or__ = __ror__ = _without("|", "nl.bitwise_or or nl.logical_or")
    __xor__ = __rxor__ = _without("^", "nl.bitwise_xor or nl.logical_xor")
    __lshift__ = __rlshift__ = _without("<<", "nl.left_shift")
    __rshift__ = __rrshift__ = _without(">>", "nl.right_shift")
    __neg__ = _without("-", "nl.negative")
    __invert__ = _without("~", "nl.invert")
    __abs__ = _without("abs", "nl.abs")
    __lt__ = __le__ = __gt__ = __ge__ = _without(
        "of comparison", "nl.less and the like with nl.where, or a register"
    )
    __int__ = __index__ = __float__ = _refused("is no number of Python", _LOADED)
    __iter__ = _refused("cannot be iterated over", "a loop over its indices, and slices")
    __len__ = _refused("has no length", "its shape")
    __setitem__ = _refused(
        "takes no values by assignment", "nl.store, nisa.tensor_copy or nisa.memset on a slice"
    )
    __array__ = _refused("is no array of numpy", _INSTRUCTIONS)
    __array_ufunc__ = __array_function__ = _refused("is no array of numpy", _INSTRUCTIONS)


INSTEAD: Mapping[str, str] = {
    "T": "permute, nl.transpose or nisa.nc_transpose",
    "transpose": "permute, nl.transpose or nisa.nc_transpose",
    "swapaxes": "permute",
    "astype": "nl.copy(tensor, dtype), or view(dtype) for its bits",
    "copy": "nl.copy or nisa.tensor_copy",
    "flatten": "reshape or flatten_dims",
    "ravel": "reshape or flatten_dims",
    "squeeze": "squeeze_dim",
    "broadcast_to": "broadcast or nl.broadcast_to",
    "item": "nisa.register_load",
    "numpy": "the kernel's result",
    "tolist": "the kernel's result",
    **{name: f"nl.{name}" for name in ("sum", "max", "min", "mean", "prod", "all", "var")},
}
"""Attribute of numpy's arrays -> what to use in its place."""
