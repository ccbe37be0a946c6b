"""Ctrl-C in the middle of a call: the interrupt is held back until the call has returned.

Python runs signal handlers between the bytecodes of the main thread, so also inside a PJRT callback
written in Python. A KeyboardInterrupt raised there could only become a PJRT error, and JAX aborts
the process when a getter fails. The handler therefore looks where it interrupted: inside a callback
it asks to be called again a little later, anywhere else it does what Python always does.
"""

from __future__ import annotations

import _thread
import queue
import signal
import threading
import time
from types import CodeType, FrameType
from typing import Any

RETRY_SECONDS = 0.002


def install(callback_codes: frozenset[CodeType]) -> bool:
    """Installs the handler in place of Python's own; a handler set by the user stays.

    ``callback_codes`` are the code objects of functions that C calls. False if it must be called
    again: only the main thread can install handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return True
    held: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put may interrupt itself
    threading.Thread(target=_repeat, args=(held,), name="neuronjax-ctrl-c", daemon=True).start()

    def handle(number: int, frame: FrameType | None) -> Any:
        if not _inside(frame, callback_codes):
            return signal.default_int_handler(number, frame)
        held.put(None)
        return None

    signal.signal(signal.SIGINT, handle)
    return True


def _repeat(held: queue.SimpleQueue[None]) -> None:
    """Presses Ctrl-C again for every one that was held back."""
    while True:
        held.get()
        time.sleep(RETRY_SECONDS)
        _thread.interrupt_main()


def _inside(frame: FrameType | None, codes: frozenset[CodeType]) -> bool:
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False
