"""Host callbacks: Python functions that programs name by a number.

A lowering registers the function and writes the number into the custom call; the executor finds the
function again when the program is compiled. The registry holds functions weakly: the lowered
program and the loaded executable keep theirs alive.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronjax.errors import UnsupportedProgramError
from neuronjax.hlo.custom_calls import CALLBACK_TARGETS, PYTHON_CALLBACK, custom_calls
from neuronjax.hlo.module import NUM_REPLICAS, TensorSpec, main_function, tensor_spec
from neuronjax.jaxlib_api.mlir import ir

_CONFIG_NAMES = ("backend_config", "mhlo.backend_config")
"""Where a typed custom call keeps its dictionary: the second as JAX writes it, and after a way
through HLO; the first may be an empty string then."""

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


class Failures:
    """What host callbacks raise in the runs of a program whose cores wait for each other.

    A core whose callback fails would never come to the next collective, and XLA ends the process
    in which the others wait. Callbacks therefore return zeros instead, and the run raises when it
    has ended: each core then calls `raise_first`. The client has no two runs on several cores under
    way at once.
    """

    def __init__(self, cores: int) -> None:
        self._cores = self._left = cores
        self._first: Exception | None = None
        self._lock = threading.Lock()

    def kept(
        self, functions: Sequence[Callable[..., Any]], module: ir.Module
    ) -> list[Callable[..., Any]]:
        """The functions of a module's callbacks, which raise nothing."""
        calls = custom_calls(module, CALLBACK_TARGETS.__contains__)
        results = {
            _number(op)[0]: [tensor_spec(value.type) for value in op.results] for op in calls
        }
        return [self._wrap_callback(function, results[at]) for at, function in enumerate(functions)]

    def _wrap_callback(
        self, function: Callable[..., Any], results: Sequence[TensorSpec]
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except Exception as error:
                with self._lock:
                    self._first = self._first or error
                return tuple(np.zeros(result.shape, result.dtype) for result in results)

        return call

    def raise_first(self) -> tuple[()]:
        """Raises on every core what the first callback that failed has raised."""
        with self._lock:
            first = self._first
            self._left -= 1
            if self._left == 0:
                self._left, self._first = self._cores, None
        if first is not None:
            raise first
        return ()


def passed_on(module: ir.Module, cores: int) -> ir.Module:
    """A program for several cores that takes what `module` returns, and returns it in the same
    memory once it has called its only callback."""
    types = [str(type_) for type_ in main_function(module).type.results]
    arguments = (
        f"%arg{at}: {text}" + (_ALIASED.format(at) if text.startswith("tensor") else "")
        for at, text in enumerate(types)
    )
    names = ", ".join(f"%arg{at}" for at in range(len(types)))
    returned = f"return {names} : {', '.join(types)}" if types else "return"
    return ir.Module.parse(f"""
module @passed_on attributes {{{NUM_REPLICAS} = {cores} : i32}} {{
  func.func public @main({", ".join(arguments)}) -> ({", ".join(types)}) {{
    stablehlo.custom_call @{PYTHON_CALLBACK}() {{
      api_version = 4 : i32, backend_config = {{index = 0 : ui64}}, has_side_effect = true
    }} : () -> ()
    {returned}
  }}
}}""")


_ALIASED = " {{tf.aliasing_output = {} : i32}}"
"""Tokens have no memory."""


def _number(op: Any) -> tuple[int, str, dict[str, ir.Attribute]]:
    """The number of a callback, where it stands, and what stands beside it."""
    name = next(
        name
        for name in _CONFIG_NAMES
        if name in op.attributes and isinstance(op.attributes[name], ir.DictAttr)
    )
    config = {named.name: named.attr for named in ir.DictAttr(op.attributes[name])}
    return ir.IntegerAttr(config["index"]).value, name, config


def _rebind(op: Any, position: int) -> Callable[..., Any]:
    number, name, config = _number(op)
    function = _functions.get(number)
    if function is None:
        raise UnsupportedProgramError(
            f"the program calls host callback {number}, whose Python function no longer exists; "
            "programs with host callbacks cannot be loaded in another process. Lower it again."
        )
    config["index"] = ir.IntegerAttr.get(config["index"].type, position)
    op.attributes[name] = ir.DictAttr.get(config)
    return function
