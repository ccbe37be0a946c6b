"""The boundary: a Python exception inside a callback becomes a PJRT error, never a crash.

Nothing in here may raise. Text that is no UTF-8 (a lone surrogate in the name of a file) crosses
with backslashes, an exception that cannot describe itself crosses under its class's name, and where
there is no memory left to describe anything, C gets an error that was made at the start.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from neuronjax import errors
from neuronjax.errors import NeuronError
from neuronjax.jaxlib_api import xla_errors
from neuronjax.pjrt import abi
from neuronjax.pjrt.handles import c_string, encoded

logger = logging.getLogger("neuronjax")

_STATUS_PREFIX = re.compile(r"^([A-Z_]+): ")

_STATUS_OF: tuple[tuple[type[BaseException], str], ...] = (
    (KeyboardInterrupt, "CANCELLED"),
    (MemoryError, "RESOURCE_EXHAUSTED"),
    (NotImplementedError, "UNIMPLEMENTED"),
    (ValueError, "INVALID_ARGUMENT"),
    (TypeError, "INVALID_ARGUMENT"),
)


class ErrorRecord:
    """An error on its way through the C API: code and message, kept until JAX destroys it."""

    __slots__ = ("code", "message")

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.message = c_string(encoded(text))


def last_error() -> ErrorRecord:
    """What C gets when describing an exception failed too; to be made while there is memory."""
    return ErrorRecord(
        abi.ERROR_CODES["RESOURCE_EXHAUSTED"],
        "a PJRT call failed, and so did the attempt to say why: this machine is probably out of "
        "memory",
    )


def describe(error: BaseException) -> ErrorRecord:
    """Status code and message of an exception. A status that its text begins with is its own."""
    text = _text(error)
    own = _raised_in_callback(text) or stated(text)
    if own:
        status, text = own
    elif isinstance(error, NeuronError):
        status = error.status
    else:
        status = next((name for kind, name in _STATUS_OF if isinstance(error, kind)), "INTERNAL")
        text = f"{type(error).__name__}: {text}{_place(error.__traceback__)}"
    return ErrorRecord(abi.ERROR_CODES.get(status, abi.ERROR_CODES["INTERNAL"]), text)


def stated(text: str) -> tuple[str, str] | None:
    """The status that a text begins with, and the text without it, however often it is there.

    jaxlib writes the status in front of the message again.
    """
    prefix = _STATUS_PREFIX.match(text)
    if prefix is None or prefix[1] not in abi.ERROR_CODES:
        return None
    while text.startswith(prefix[0]):
        text = text[prefix.end() :]
    return prefix[1], text


def _raised_in_callback(text: str) -> tuple[str, str] | None:
    """Status and message of an error of the project that ended a host callback of a run."""
    name, message = xla_errors.raised_in_callback(text) or ("", "")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, NeuronError):
        return kind.status, message
    return None


def _text(error: BaseException) -> str:
    """An exception's own words; its ``__str__`` may be anybody's code."""
    name = type(error).__name__
    try:
        return str(error) or name
    except BaseException as failure:
        return f"{name} (its text is unknown: __str__ raised {type(failure).__name__})"


def _place(traceback: TracebackType | None) -> str:
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f" (at {traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno})"


Callback = Callable[[int], int | None]
"""Takes the address of a call's arguments; returns that of an error, or ``None``."""


def guarded(
    plugin: Any, structure: Any, call: str, function: Callable[[Any, Any], None]
) -> Callback:
    """``function(plugin, args)`` as the callback of ``call`` with arguments ``structure``.

    Without a structure the function gets the address of the arguments.
    """
    shutting_down = sys.is_finalizing
    last_resort = plugin.last_error
    view = None if structure is None else structure.from_address

    def callback(address: int) -> int | None:
        try:
            if shutting_down():  # modules are torn down: only destructors can still arrive
                return None
            try:
                function(plugin, address if view is None else view(address))
            except BaseException as error:
                _log(call)
                return plugin.new_error(error)
            return None
        except BaseException:
            return last_resort

    return callback


def _log(call: str) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("PJRT_%s failed", call, exc_info=True)
