"""The process with the clients, from the one with the device: HTTP has an interpreter of its own,
so that it takes no time of a step's."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from launch.program import say
from launch.serving.backend import Backend
from launch.serving.channel import Channel
from launch.serving.http.tasks import Job, Task
from launch.serving.messages import Drain, Halt

_PATIENCE = 10.0  # seconds that a process may take to end that has nothing to do


class Front:
    """The process with the clients: it loads at once, waits for its task, and ends with the `with`
    block."""

    def __init__(self, sockets: Sequence[socket.socket] = ()) -> None:
        """`sockets`: those that a task names by their numbers."""
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._desk: threading.Thread | None = None
        files = (theirs.fileno(), *(entry.fileno() for entry in sockets))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "launch.serving.http", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=files,
                start_new_session=True,  # Ctrl-C is for this process
            )

    def __enter__(self) -> "Front":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._channel.close()
        if kind is not None:  # whatever it is at, nobody waits for it
            self._process.kill()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._desk is not None:
            self._desk.join()

    def start(self, backend: Backend, task: Task) -> None:
        """Gives the process its task, and answers it from now on."""
        self._channel.send(Job(backend.recipe, task))
        self._desk = threading.Thread(
            target=backend.desk.work, args=(self._channel,), name="desk", daemon=True
        )
        self._desk.start()

    def wait(self) -> int:
        """Waits until the process has ended, and returns its exit code."""
        code = self._process.wait()
        if code < 0:
            say(f"error: the process with the clients was ended by {signal.Signals(-code).name}")
            return 1
        return code

    def drain(self, why: str) -> None:
        """Tells the process to complete the answers under way, refuse new requests, and then
        end."""
        self._channel.send(Drain(why))

    def halt(self) -> None:
        """Tells the process to end at once."""
        self._channel.send(Halt())

    def kill(self) -> None:
        """Kills the process, which has no chance to end by itself."""
        self._process.kill()

    @contextmanager
    def told_of_signals(self) -> Iterator[None]:
        """The first SIGINT or SIGTERM within the `with` block drains the process, the second one
        halts it, and the third one kills it. Main thread only."""
        ours, pythons = socket.socketpair()
        pythons.setblocking(False)  # as set_wakeup_fd wants it
        # A signal may come to a thread that does not wake the main one, so another one listens.
        listener = threading.Thread(target=self._listen, args=(ours,), name="signals", daemon=True)
        listener.start()
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, lambda *_: None) for number in numbers}
        previous_wakeup = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_wakeup)
            for number, handler in previous.items():
                signal.signal(number, handler)
            pythons.close()  # ends the listener
            listener.join()
            ours.close()

    def _listen(self, signals: socket.socket) -> None:
        """Until the other end is closed."""
        count = 0
        while numbers := signals.recv(1):
            if count < len(_ACTIONS):
                _ACTIONS[count](self, signal.Signals(numbers[0]).name)
            count += 1


# What the first signal does, the second and the third.
_ACTIONS: Sequence[Callable[[Front, str], None]] = (
    Front.drain,
    lambda front, name: front.halt(),
    lambda front, name: front.kill(),
)
