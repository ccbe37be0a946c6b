"""Kernels that never end: loops that write no instruction, which would hang a compilation."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from types import TracebackType

from neuronjax.errors import KernelError
from neuronjax.nki.tracing import Trace, line_in_kernel

PATIENCE_SECONDS = 60.0
"""Computing time of the process, which does not pass while the machine is suspended, within which a
kernel writes its next instruction or tensor."""


class _EndlessError(BaseException):
    """What the watching thread raises in the one that traces; no kernel catches it by mistake."""


class Watch:
    """Ends the trace of a kernel that makes no progress, with the line where it is."""

    def __init__(self, name: str, trace: Trace) -> None:
        self._name, self._trace = name, trace
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._stuck = ""
        self._tracing = threading.get_ident()
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="neuronjax-nki")

    def __enter__(self) -> None:
        self._watcher.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with self._lock:
                self._ended.set()
        except _EndlessError as late:
            error = late
        if isinstance(error, _EndlessError):
            raise KernelError(
                f"{self._stuck}: {self._name} has computed for {PATIENCE_SECONDS:g} s without "
                "writing an instruction, and is here. A kernel's Python runs once, when it is "
                "compiled: end its loop, or compute what takes long before the kernel is called."
            ) from None

    def _watch(self) -> None:
        before, since = self._trace.mark(), time.process_time()
        while not self._ended.wait(PATIENCE_SECONDS / 4):
            now, spent = self._trace.mark(), time.process_time()
            if now != before:
                before, since = now, spent
            elif spent - since > PATIENCE_SECONDS:
                frame = sys._current_frames().get(self._tracing)
                self._stuck = line_in_kernel(frame) if frame is not None else self._name
                self._interrupt()
                return

    def _interrupt(self) -> None:
        """Raises an exception in the tracing thread, unless it is done."""
        with self._lock:
            if not self._ended.is_set():
                thread = ctypes.c_ulong(self._tracing)
                kind = ctypes.py_object(_EndlessError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, kind)
