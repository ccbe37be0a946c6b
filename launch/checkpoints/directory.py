"""The run directory: where it may be, and the lock that keeps a second run out of it."""

import fcntl
import json
import os
import socket
from pathlib import Path
from types import TracebackType

from launch.errors import CheckpointError

LOCK = ".lock"


def run_directory(text: str) -> Path:
    """The folder that --checkpoint_dir names: a path, or a file:// URL.

    Raises CheckpointError for other URLs: object stores have neither locks nor the atomic rename
    that keeps an incomplete checkpoint invisible.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(text)
    if scheme == "file" and rest.startswith("/"):
        return Path(rest)
    raise CheckpointError(
        f"--checkpoint_dir={text} is an object store, but checkpoints need a file system with "
        "locks and atomic renames (local disk, NFS, Lustre). Give a path, and copy finished "
        "checkpoints to the store; their folders never change."
    )


class RunLock:
    """Locks a run directory for this process until it ends, however it ends; creates the directory.

    Raises CheckpointError if another process holds the lock, or if nothing can be written there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CheckpointError(
                f"cannot write to --checkpoint_dir={directory}: {error.strerror}. Give a writable "
                "directory."
            ) from error
        try:
            self._acquire()
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Releases the lock."""
        os.close(self._file)

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"--checkpoint_dir={self._directory} is in use by {self._holder()}. Wait until "
                "that run has ended, stop it, or give another directory."
            ) from error
        except OSError as error:
            raise CheckpointError(
                f"cannot lock --checkpoint_dir={self._directory}: {error.strerror}. Give a "
                "directory on a file system that supports locks."
            ) from error
        holder = {"pid": os.getpid(), "host": socket.gethostname()}
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(holder).encode(), 0)
        except OSError as error:
            raise CheckpointError(
                f"cannot write to --checkpoint_dir={self._directory}: {error.strerror}. Free some "
                "space or give another directory."
            ) from error

    def _holder(self) -> str:
        try:
            holder = json.loads(os.pread(self._file, 4096, 0))
            return f"process {holder['pid']} on {holder['host']}"
        except (ValueError, TypeError, KeyError):
            return "another process"
