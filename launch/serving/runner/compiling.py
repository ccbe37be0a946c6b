"""Programs that are compiled when they are needed, or beside what already runs."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")


class Compiled(Generic[Key]):
    """Programs by their keys, each compiled once. From any thread."""

    def __init__(self, compile_one: Callable[[Key], Any]) -> None:
        self._compile = compile_one
        self._programs: dict[Key, Future[Any]] = {}
        self._planned: set[Key] = set()  # those that will be there without being asked for
        self._lock = threading.Lock()

    def get(self, key: Key) -> Any:
        """The program; compiles it, or waits for whoever does."""
        with self._lock:
            program = self._programs.get(key)
            is_own = program is None
            if program is None:
                program = self._programs[key] = Future()
        if is_own:
            try:
                program.set_result(self._compile(key))
            except BaseException as error:
                with self._lock:
                    del self._programs[key]
                program.set_exception(error)
            with self._lock:
                self._planned.discard(key)
        return program.result()

    def is_ready(self, key: Key) -> bool:
        """Whether the program of a key can be had at once."""
        program = self._programs.get(key)
        return program is not None and program.done()

    def instead(self, key: Key, others: Callable[[], Sequence[Key]]) -> Key:
        """The key itself; as long as it is only planned, the first of `others` that is ready."""
        if not self._planned or key not in self._planned:
            return key
        return next((other for other in others() if self.is_ready(other)), key)

    @contextmanager
    def beside(
        self, keys: Collection[Key], on_end: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Compiles these in a thread of its own, until the end of the block at most; `on_end` is
        called when all are there. What cannot be compiled is told to whoever asks for it."""
        self._planned = {key for key in keys if not self.is_ready(key)}
        stop = threading.Event()

        def work() -> None:
            for key in keys:
                if stop.is_set():
                    return
                try:
                    self.get(key)
                except Exception:
                    self._planned.discard(key)
            if keys:
                on_end()

        thread = threading.Thread(target=work, name="compiler", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
