"""The boundary: a Python exception inside a callback becomes a PJRT error, never a crash."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

from neuronjax.errors import NeuronError
from neuronjax.pjrt import abi
from neuronjax.pjrt.handles import c_string

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
        data = text.encode()
        self.code = code
        self.message = c_string(data)


def describe(error: BaseException) -> ErrorRecord:
    """Status code and message of an exception."""
    text = str(error) or type(error).__name__
    if isinstance(error, NeuronError):
        status = error.status
    elif (prefix := _STATUS_PREFIX.match(text)) and prefix[1] in abi.ERROR_CODES:
        status, text = prefix[1], text[prefix.end() :]
    else:
        status = next((name for kind, name in _STATUS_OF if isinstance(error, kind)), "INTERNAL")
        where = traceback.extract_tb(error.__traceback__)
        place = f" (at {where[-1].filename}:{where[-1].lineno})" if where else ""
        text = f"{type(error).__name__}: {text}{place}"
    return ErrorRecord(abi.ERROR_CODES[status], text)


def guarded(plugin: Any, structure: Any, call: str, function: Callable[[Any, Any], None]) -> Any:
    """``function(plugin, args)`` as the C callback of ``call`` with arguments ``structure``."""
    from_address = structure.from_address
    shutting_down = sys.is_finalizing

    def callback(address: int) -> int | None:
        if shutting_down():  # modules are torn down: only destructors can still arrive
            return None
        try:
            function(plugin, from_address(address))
        except BaseException as error:
            logger.debug("PJRT_%s failed", call, exc_info=True)
            return plugin.new_error(error)
        return None

    return abi.CALLBACK(callback)


def _callback_codes() -> frozenset[CodeType]:
    return frozenset(c for c in guarded.__code__.co_consts if isinstance(c, CodeType))


CALLBACK_CODES = _callback_codes()
"""Code objects of the functions that C calls."""
