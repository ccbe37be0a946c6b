"""Programs on their way to JAX, and what becomes of them when the process ends.

Some versions of JAX compile in a thread of jaxlib, and stop waiting for it when Ctrl-C is pressed.
That thread outlives the script. jaxlib takes an error from a compilation, but aborts the process if
a program that it got cannot say where it is loaded. So the end of the process gives up
compilations, and waits until jaxlib has the programs that are compiled.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from neuronjax.errors import NeuronError

Given = ParamSpec("Given")
Compiled = TypeVar("Compiled")

_END_SECONDS = 30
"""How long the end of the process waits, in case a compilation cannot be interrupted."""


def compile_unless_interrupted(
    function: Callable[Given, Compiled], /, *args: Given.args, **kwargs: Given.kwargs
) -> Compiled:
    """What ``function``, which compiles, returns. Ctrl-C ends it in the middle: see ``Interrupts``.

    Raises:
        KeyboardInterrupt: it was pressed.
    """
    return function(*args, **kwargs)


class Loading:
    """The programs of a plugin that are being compiled, or that jaxlib does not have yet."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._handles: set[int] = set()
        self._ends = False

    @contextmanager
    def begun(self) -> Iterator[None]:
        """The block that compiles a program, in a thread that the end of the process may interrupt.

        Raises:
            NeuronError: the process ends.
        """
        if self._ends:
            raise NeuronError("the process ends, so nothing is compiled any more")
        thread = threading.get_ident()
        self._threads.add(thread)
        try:
            yield
        finally:
            self._threads.discard(thread)

    def compiled(self, handle: int) -> int:
        """Notes the handle of a program that is about to be returned, before its block ends."""
        self._handles.add(handle)
        return handle

    def taken(self, handle: int) -> None:
        """Notes that jaxlib has asked a program all that it insists on."""
        self._handles.discard(handle)

    def forget_threads(self) -> None:
        """Forgets what was begun: in a forked child, nobody goes on with it."""
        self._threads.clear()
        self._handles.clear()

    def end(self) -> None:
        """Gives up compilations, and waits for what other threads do here."""
        self._ends = True
        for thread in self._threads - {threading.get_ident()}:
            interrupt = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), interrupt)
        deadline = time.monotonic() + _END_SECONDS
        while (self._threads or self._handles) and time.monotonic() < deadline:
            time.sleep(0.0005)
