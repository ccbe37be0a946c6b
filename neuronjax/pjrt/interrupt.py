"""Ctrl-C in the middle of a call: a compilation ends, other calls return before they hear of it.

Python runs signal handlers between the bytecodes of the main thread, so also inside a PJRT callback
written in Python. A KeyboardInterrupt raised there could only become a PJRT error, and JAX aborts
the process when a getter fails. One raised in a function that the garbage collector calls, such as
one of JAX's, is printed and forgotten. The handler therefore looks where it interrupted. Outside
these it does what Python always does. Inside, it has the function that called them traced, as
debuggers do, and raises the interrupt there with the next line: a loop of calls may leave callbacks
for microseconds only, too short for another signal to meet. While a debugger or a coverage tool
traces, the handler asks to be called again a little later instead.

Compilations take minutes, and their call may fail: there the handler raises a KeyboardInterrupt as
well, and the traced function never sees the PJRT error that it becomes.
"""

from __future__ import annotations

import _thread
import gc
import queue
import signal
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any, NamedTuple

from neuronjax.pjrt.loading import compile_unless_interrupted

RETRY_SECONDS = 0.002


class Interrupts:
    """The handler that holds interrupts back, to be installed in place of Python's own.

    ``callback_codes`` are the code objects of functions that C calls.
    """

    def __init__(self, callback_codes: frozenset[CodeType]) -> None:
        self._codes = callback_codes
        self._held: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put may interrupt itself
        self._presses: threading.Thread | None = None
        self.raised = False
        """Whether one has become a KeyboardInterrupt since this was last set to False."""

    def install(self) -> bool:
        """Installs the handler; one that the user set stays. False if it must be called again: only
        the main thread can install handlers."""
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return True
        if self._presses is None:
            self._presses = threading.Thread(
                target=_repeat, args=(self._held,), name="neuronjax-ctrl-c", daemon=True
            )
            self._presses.start()
        signal.signal(signal.SIGINT, self._handle)
        return True

    def _handle(self, number: int, frame: FrameType | None) -> Any:
        callbacks = _find_callbacks(frame, self._codes, _codes_of_collector())
        if not callbacks.inside:
            self.raised = True
            return signal.default_int_handler(number, frame)
        if sys.gettrace() is _no_trace:
            return None  # an earlier one will be raised
        if callbacks.caller is None or sys.gettrace() is not None:
            self._held.put(None)
            return None
        self._raise_later(number, callbacks.caller)
        return signal.default_int_handler(number, frame) if callbacks.compiles else None

    def _raise_later(self, number: int, caller: FrameType) -> None:
        """Has the interrupt raised in ``caller``, with its next line or exception."""

        def interrupt(frame: FrameType, event: str, argument: Any) -> None:
            sys.settrace(None)
            caller.f_trace = None
            self._handle(number, frame)

        caller.f_trace = interrupt
        sys.settrace(_no_trace)


def _repeat(held: queue.SimpleQueue[None]) -> None:
    """Presses Ctrl-C again for every one that was held back."""
    while True:
        held.get()
        time.sleep(RETRY_SECONDS)
        _thread.interrupt_main()


def _no_trace(frame: FrameType, event: str, argument: Any) -> None:
    """Traces no function that begins."""


def _codes_of_collector() -> frozenset[CodeType]:
    """Code objects of the functions that the garbage collector calls."""
    codes = (getattr(callback, "__code__", None) for callback in gc.callbacks)
    return frozenset(code for code in codes if code is not None)


class _Callbacks(NamedTuple):
    """The functions called by C that a frame is inside of."""

    inside: bool
    """Whether there are any."""
    caller: FrameType | None
    """What called the outermost one."""
    compiles: bool
    """Whether the innermost one compiles, and may be given up here."""


def _find_callbacks(
    frame: FrameType | None, calls: frozenset[CodeType], collector: frozenset[CodeType]
) -> _Callbacks:
    inside, caller, compiles = False, None, False
    while frame is not None:
        compiles |= not inside and frame.f_code is compile_unless_interrupted.__code__
        if frame.f_code in calls or frame.f_code in collector:
            inside, caller = True, frame.f_back
        frame = frame.f_back
    return _Callbacks(inside, caller, compiles)
