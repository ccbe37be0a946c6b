"""What a process that runs a stranger's code may take and touch, and how it ends if it does more.

Python's audit hooks name what is touched, and the kernel of the operating system refuses it where
it can (`sandbox`). Without Landlock, code that is determined gets around the hooks: they protect
from accidents.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

_GRACE_SECONDS = 5
"""A process that does not heed the signal which names a loop ends after this time."""

MOST_FILES = 256
"""Files that a candidate may open for writing."""

_PROGRAMS = frozenset({
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty",
    "subprocess.Popen", "pty.spawn",
})  # fmt: skip
_SIGNALS = frozenset({"os.kill", "os.killpg"})
_CHANGES = frozenset({
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr", "shutil.rmtree",
})  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Limits:
    """What a candidate may take."""

    #: Of computing time: the largest kernels of public benchmarks take a minute to be traced.
    seconds: int = 300
    #: Beside what Python and the emulator take.
    mebibytes: int = 4096
    #: Of what it prints, and of any file that it writes.
    output_kibibytes: int = 1024

    @property
    def patience_seconds(self) -> int:
        """Real time after which a candidate has ended: one may sleep, or others compute."""
        return 10 * self.seconds + 10


def limit(limits: Limits, file: Path, end: Callable[[str], None]) -> None:
    """Sets the limits of this process; `end` ends it with a reason, in which `file` is named."""
    hard = limits.seconds + _GRACE_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, hard))
    memory = _address_bytes() + (limits.mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    output = limits.output_kibibytes << 10
    resource.setrlimit(resource.RLIMIT_FSIZE, (output, output))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def too_long(_: int, frame: FrameType | None) -> None:
        end(f"{_place(frame, file)}: it computes for more than {limits.seconds} s")

    signal.signal(signal.SIGXCPU, too_long)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def _address_bytes() -> int:
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0


def out_of_memory(limits: Limits) -> str:
    """The reason of a candidate that got no more memory."""
    return f"it needs more than {limits.mebibytes} MiB of memory beside the emulator"


def of_signal(number: int, limits: Limits) -> str:
    """Why a process was ended by a signal."""
    if number == signal.SIGXFSZ:
        return f"it writes more than {limits.output_kibibytes} KiB of output"
    if number == signal.SIGSYS:
        return "it makes a system call that is not allowed, such as for a socket or a program"
    if number in (signal.SIGKILL, signal.SIGXCPU):
        return f"it was killed: it computes for more than {limits.seconds} s, or needs more memory"
    return f"it was ended by {signal.Signals(number).name}"


def _place(frame: FrameType | None, file: Path) -> str:
    """The function of the file that was called first: the same wherever in it a loop is."""
    place = str(file)
    while frame is not None:
        if frame.f_code.co_filename == str(file):
            place = f"{file}:{frame.f_code.co_firstlineno}"
        frame = frame.f_back
    return place


def readable_roots(file: Path) -> list[Path]:
    """Folders that a kernel needs to read: its own, Python's, this package's and the system's."""
    own = [path for path in sys.path if path and os.path.isdir(path)]
    own.append(str(Path(__file__).parents[2]))  # an editable install is on no path
    system = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/sys", "/dev")
    folders = [str(file.parent), sys.prefix, sys.base_prefix, sys.exec_prefix, *own, *system]
    return [Path(path) for path in dict.fromkeys(os.path.realpath(path) for path in folders)]


@dataclass
class Guard:
    """An audit hook that ends the process when its code touches what is not its own."""

    file: Path
    #: The only folder to which it may write, and those that it may read.
    folder: Path
    readable: Sequence[Path]
    #: Files below these that it may not read all the same.
    hidden: Sequence[Path]
    end: Callable[[str], None]
    written_files: int = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._check_opened(*arguments)
        elif event.startswith("socket."):
            self._end(f"it opens a socket ({event})")
        elif event in _PROGRAMS:
            self._end(f"it starts another program ({event})")
        elif event in _SIGNALS:
            self._end(f"it sends a signal ({event})")
        elif event in _CHANGES:
            for path in arguments[:2]:
                if isinstance(path, str | bytes) and not self._is_below(path, [self.folder]):
                    self._end(f"it changes what is outside its folder: {os.fsdecode(path)}")

    def _check_opened(self, path: object, mode: str | None, flags: object) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        is_written = any(letter in (mode or "") for letter in "wax+") or bool(
            isinstance(flags, int) and flags & _WRITING
        )
        if is_written and os.fspath(path) not in (os.devnull, os.fsencode(os.devnull)):
            self.written_files += 1
            if not self._is_below(path, [self.folder]):
                self._end(f"it writes outside its folder: {os.fsdecode(path)}")
            if self.written_files > MOST_FILES:
                self._end(f"it writes more than {MOST_FILES} files")
        elif self._is_below(path, self.hidden):
            self._end("it reads the task that it is judged by")
        elif os.path.exists(path) and not self._is_below(path, [self.folder, *self.readable]):
            self._end(f"it reads what is not its own: {os.fsdecode(path)}")

    def _is_below(self, path: str | bytes | os.PathLike, roots: Sequence[Path]) -> bool:
        real = Path(os.fsdecode(os.path.realpath(path)))
        return any(real.is_relative_to(root) for root in roots)

    def _end(self, what: str) -> None:
        self.end(f"{_place(sys._getframe(), self.file)}: {what}")
