"""What public names do that are not built: they say so, and why, on call."""

from __future__ import annotations

import difflib
import dis
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from neuronjax.errors import RemovedImportError, UnknownNameError, UnsupportedProgramError
from neuronjax.nki.trace import current, is_tracing


def refusing(name: str, reason: str) -> Callable[..., Any]:
    """A function that raises ``UnsupportedProgramError`` with the kernel's line; `name` is whole,
    such as `nki.isa.sendrecv`."""

    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise UnsupportedProgramError(f"{current().line()}: {name} is not built: {reason}.")

    return refuse


def checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises ``UnsupportedProgramError`` with the kernel's line for arguments
    that it does not take; `name` is whole."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except TypeError:
            parameters = inspect.signature(function)
            try:
                parameters.bind(*arguments, **keywords)
            except TypeError as error:
                taken = ", ".join(parameters.parameters)
                raise UnsupportedProgramError(f"{_place()}{name}({taken}): {error}.") from None
            raise

    return call


def unknown(module: str, name: str, names: Iterable[str]) -> UnknownNameError:
    """The error for a name that a module does not have, with the nearest that it has; with the line
    where a kernel is traced."""
    near = difflib.get_close_matches(name, list(names), 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return UnknownNameError(f"{_place()}{module} has no {name!r}.{hint}")


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
