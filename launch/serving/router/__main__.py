"""One of the servers behind a router: `python -m launch.serving.router FILE`, the number of a
socket to the router, which says what to serve. When the router has gone, it ends, too."""

import os
import signal
import socket
import sys
import threading

from absl import logging

from launch.program import guarded
from launch.program_cache import keep_programs
from launch.serving.channel import receive
from launch.serving.kinds import serve
from launch.serving.router.job import ReplicaJob


def main() -> int:
    logging.set_verbosity(logging.FATAL)
    router = socket.socket(fileno=int(sys.argv[1]))
    job: ReplicaJob | None = receive(router)
    if job is None:
        return 1
    threading.Thread(target=_end_with, args=(router,), name="router", daemon=True).start()
    keep_programs(job.choice.engine.compilation_cache_dir)
    return serve(job.choice, job.config)


def _end_with(router: socket.socket) -> None:
    """Waits until the router closes its end: nothing more comes from it."""
    router.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(guarded(main))
