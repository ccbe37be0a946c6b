"""What public names do that are not built: they say so, and why, on call."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn, ParamSpec, TypeVar

from neuronjax.errors import (
    KernelError,
    MalformedProgramError,
    NeuronError,
    RemovedImportError,
    UnknownNameError,
    UnsupportedProgramError,
    did_you_mean,
)
from neuronjax.nki.tracing import current, is_tracing

P = ParamSpec("P")
R = TypeVar("R")


def refusing(name: str, reason: str) -> Callable[..., NoReturn]:
    """A function that raises ``UnsupportedProgramError`` with the kernel's line; `name` is whole,
    such as `nki.isa.sendrecv`."""

    def refuse(*arguments: object, **keywords: object) -> NoReturn:
        raise UnsupportedProgramError(f"{current().line()}: {name} is not built: {reason}.")

    return refuse


_OF_PYTHON = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, OSError)
"""What Python raises for values that a function does not take."""


def checked(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that raises an error with the kernel's line for arguments that it does not take;
    `name` is whole. It must not call functions of the kernel's own.

    Raises:
      UnsupportedProgramError: it has other parameters.
      KernelError: Python cannot do with a value what the function does with it.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            try:
                return function(*arguments, **keywords)
            except (NeuronError, *_OF_PYTHON) as error:
                if isinstance(error, NeuronError) and not isinstance(error, MalformedProgramError):
                    raise
                parameters = inspect.signature(function)
                taken = ", ".join(key for key in parameters.parameters if key != "self")
                wrong = misfit(parameters, arguments, keywords)
                if wrong is not None:
                    raise UnsupportedProgramError(f"{_place()}{name}({taken}): {wrong}") from None
                raise KernelError(
                    f"{_place()}{name}({taken}) does not take these values: {_said(error)}."
                ) from error

        return call

    return decorate


def _said(error: Exception) -> str:
    """What Python says of a value."""
    return str(error).rstrip(".") or type(error).__name__


def misfit(
    signature: inspect.Signature, positional: Sequence[object], keywords: Mapping[str, object]
) -> str | None:
    """What is wrong with the arguments of a call, with the parameter that is nearest to an unknown
    one; None: nothing."""
    parameters = signature.parameters
    takes_all = any(kind.kind is kind.VAR_KEYWORD for kind in parameters.values())
    for name in () if takes_all else keywords:
        if name not in parameters:
            hint = did_you_mean(name, parameters)
            return f"got an unexpected keyword argument {name!r}.{hint}"
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        return f"{error}."
    return None


def unknown(
    owner: str, name: str, names: Iterable[str], instead: str | None = None
) -> UnknownNameError:
    """The error for a name that a module or an object does not have, with the nearest that it has
    unless something else stands in its place; with the line where a kernel is traced."""
    hint = f" Use {instead}." if instead else did_you_mean(name, names)
    return UnknownNameError(f"{_place()}{owner} has no {name!r}.{hint}")


def removed(module: str, name: str, instead: str) -> UnknownNameError | RemovedImportError:
    """The error for a name that a module had once; with the line where a kernel is traced.

    To be called by a module's `__getattr__`.
    """
    message = f"{_place()}{module}.{name} was removed from NKI: {instead}."
    caller = sys._getframe(2)
    if caller.f_code.co_code[caller.f_lasti] == _IMPORT_FROM:
        return RemovedImportError(message, name=module)
    return UnknownNameError(message)


_IMPORT_FROM = dis.opmap["IMPORT_FROM"]
"""The instruction of `from module import name`, which replaces the words of an AttributeError."""


def _place() -> str:
    return f"{current().line()}: " if is_tracing() else ""
