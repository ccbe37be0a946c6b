"""`nki.isa`: instructions of the engines. `NOT_BUILT` names those that only say so on call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from neuronjax.errors import KernelError, UnsupportedProgramError
from neuronjax.machine.chips import CHIPS
from neuronjax.nki import constants as constants
from neuronjax.nki.building import BUILDERS, build
from neuronjax.nki.constants import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from neuronjax.nki.dtypes import element_type
from neuronjax.nki.dynamic_loops import VirtualRegister
from neuronjax.nki.known_failures import note_call
from neuronjax.nki.limits import check_limits
from neuronjax.nki.refusal import checked, misfit, refusing, removed, unknown
from neuronjax.nki.scheduling import NkiInstruction
from neuronjax.nki.signatures import SIGNATURES, bound, signature
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import Trace, current

if TYPE_CHECKING:
    import neuronjax.nki.declared_isa as declared_isa
    from neuronjax.nki.declared_isa import *  # noqa: F403

__all__ = [
    "NOT_BUILT",
    "NkiInstruction",
    "NkiValidationError",
    "VirtualRegister",
    "dge_mode",
    "dma_engine",
    "engine",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "register_alloc",
    "scalar_engine",
    "tensor_engine",
    "vector_engine",
]
if TYPE_CHECKING:
    __all__ += declared_isa.__all__

tensor_engine, vector_engine = engine.tensor, engine.vector
scalar_engine, gpsimd_engine = engine.scalar, engine.gpsimd
NkiValidationError = KernelError

NOT_BUILT: Mapping[str, str] = {
    "sparse_matmul": "the form of its operands is not public; use nc_matmul",
}
"""Instruction that raises ``UnsupportedProgramError`` on call -> the reason."""


REMOVED: Mapping[str, str] = {
    "builtin_custom_op": "write it with instructions of nki.isa",
    "tensor_copy_dynamic_dst": "use tensor_copy with dst[…, nl.ds(register, size)]",
    "tensor_copy_dynamic_src": "use tensor_copy with src[…, nl.ds(register, size)]",
    "unknown_engine": "use engine.unknown",
}
"""Name of older versions of NKI -> what to write instead."""

_REMOVED_PARAMETERS: Mapping[str, str] = {
    "dtype": "Older versions of NKI had dtype: results have the dtype of dst.",
    "mask": "Older versions of NKI had mask: index what is meant with slices or nl.ds.",
}
_WRITES = " It writes to dst, a tile that you declare, and returns no tile."


def get_nc_version() -> nc_version:
    """The generation of the core that the kernel is traced for."""
    return nc_version(CHIPS[current().chip].core.version)


def get_nc_sub_version() -> int:
    """The revision of the core within its generation: the first."""
    return 0


def register_alloc(x: int | Tensor | None = None) -> VirtualRegister:
    """A register for 32-bit integers, with the value `x`, that of a tensor's element, or none."""
    register = VirtualRegister(current().register())
    if x is not None:
        _named("register_load" if isinstance(x, Tensor) else "register_move")(register, x)
    return register


def _named(name: str) -> Callable[..., NkiInstruction]:
    """A function by its name, with the signature of `SIGNATURES`."""
    if name in NOT_BUILT:
        return refusing(f"nki.isa.{name}", NOT_BUILT[name])
    if name not in SIGNATURES:
        if name in REMOVED:
            raise removed("nki.isa", name, REMOVED[name])
        raise unknown("nki.isa", name, __dir__())

    return _function(name)


if not TYPE_CHECKING:
    __getattr__ = _named


@functools.cache
def _function(name: str) -> Callable[..., NkiInstruction]:
    """A function of `SIGNATURES`."""

    def call(*arguments: object, **keywords: object) -> NkiInstruction:
        trace = current()
        if "dtype" in keywords and "dst" in keywords and "dtype" not in signature(name).parameters:
            _compare_dtypes(trace, keywords.pop("dtype"), keywords["dst"])
        try:
            given = bound(name, arguments, keywords)
        except TypeError as error:
            wrong = misfit(signature(name), arguments, keywords) or str(error)
            raise UnsupportedProgramError(
                f"{trace.line()}: nki.isa.{name}({SIGNATURES[name]}): {wrong}"
                f"{_hint(name, keywords, wrong)}"
            ) from None
        numbers = {parameter: _of_python(value) for parameter, value in given.items()}
        built = build(trace, name, numbers)
        check_limits(trace, name, numbers)
        note_call(trace, f"nki.isa.{name}", numbers)
        line, label = trace.add(built), given.get("name")
        if label is not None:
            trace.names[str(label)] = line
        around = [loop for loop in trace.open_loops if loop.trips is not None]
        loop = around[-1] if around else None
        return NkiInstruction(name, line, len(trace.instructions) - 1, loop)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = BUILDERS[name].instruction.__doc__
    call.__signature__ = signature(name)  # type: ignore[attr-defined]
    return checked(f"nki.isa.{name}")(call)


def _of_python(value: object) -> object:
    """Numbers of numpy as those of Python, also in lists and short arrays of integers."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size <= _MOST_NUMBERS:
        return value.tolist()
    if isinstance(value, list):
        return [_of_python(entry) for entry in value]
    return tuple(map(_of_python, value)) if isinstance(value, tuple) else value


_PLAIN = frozenset({Tensor, int, float, bool, str, type(None)})
_MOST_NUMBERS = 64
"""The most numbers of a mask or a pattern; larger arrays are given in the place of tensors."""


def _compare_dtypes(trace: Trace, dtype: Any, dst: object) -> None:
    """Notes if `dtype`, which published kernels name beside `dst`, is not that of `dst`."""
    if dtype is None or not isinstance(dst, Tensor):
        return
    given = element_type(dtype)
    if given != dst.dtype:
        trace.advice[trace.line()] = f"dtype={given.name} has no effect: dst is {dst.dtype.name}"


def _hint(name: str, keywords: Mapping[str, object], wrong: str) -> str:
    """What to do about arguments that a function does not take."""
    known = signature(name).parameters
    older = [text for key, text in _REMOVED_PARAMETERS.items() if key in keywords.keys() - known]
    if older:
        return " " + " ".join(older)
    is_short = "unexpected" not in wrong and SIGNATURES[name].startswith("dst, ")
    return _WRITES if is_short else ""


def __dir__() -> list[str]:
    return [*__all__, *SIGNATURES, *NOT_BUILT]
