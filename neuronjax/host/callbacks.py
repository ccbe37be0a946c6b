"""Host callbacks: Python functions that programs name by a number.

A lowering registers the function and writes the number into the custom call; the executor finds the
function again when the program is compiled. The registry holds functions weakly: the lowered
program and the loaded executable keep theirs alive.
"""

from __future__ import annotations

import functools
import itertools
import logging
import weakref
from collections.abc import Callable
from typing import Any

from neuronjax.errors import UnsupportedProgramError
from neuronjax.hlo.custom_calls import CALLBACK_TARGETS, custom_calls
from neuronjax.jaxlib_api.mlir import ir

_CONFIG_NAMES = ("backend_config", "mhlo.backend_config")
"""Where a typed custom call keeps its dictionary: the second as JAX writes it, and after a way
through HLO; the first may be an empty string then."""

_log = logging.getLogger("neuronjax.callbacks")

_numbers = itertools.count(1)
_functions: weakref.WeakValueDictionary[int, Callable[..., Any]] = weakref.WeakValueDictionary()


def register(function: Callable[..., Any]) -> int:
    """A number for ``function``, valid as long as somebody else keeps the function alive."""
    number = next(_numbers)
    _functions[number] = function
    return number


def bind(module: ir.Module) -> list[Callable[..., Any]]:
    """Numbers the module's callbacks 0, 1, … in place and returns their functions in that order.

    Raises:
      UnsupportedProgramError: the program comes from another process, which kept the function.
    """
    calls = custom_calls(module, CALLBACK_TARGETS.__contains__)
    return [_rebind(op, position) for position, op in enumerate(calls)]


def tell_failures(function: Callable[..., Any], waits_seconds: int) -> Callable[..., Any]:
    """The function, which logs an exception at once: XLA reports it when all cores have ended, and
    those that wait for this one at a collective never do, until XLA ends the process."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception:
            _log.exception(
                "a host callback raised an exception on one of several cores; if others wait for "
                "that core at a collective, XLA ends the process %d s from now",
                waits_seconds,
            )
            raise

    return call


def _rebind(op: Any, position: int) -> Callable[..., Any]:
    name = next(
        name
        for name in _CONFIG_NAMES
        if name in op.attributes and isinstance(op.attributes[name], ir.DictAttr)
    )
    config = {named.name: named.attr for named in ir.DictAttr(op.attributes[name])}
    number = ir.IntegerAttr(config["index"]).value
    function = _functions.get(number)
    if function is None:
        raise UnsupportedProgramError(
            f"the program calls host callback {number}, whose Python function no longer exists; "
            "programs with host callbacks cannot be loaded in another process. Lower it again."
        )
    config["index"] = ir.IntegerAttr.get(config["index"].type, position)
    op.attributes[name] = ir.DictAttr.get(config)
    return function
