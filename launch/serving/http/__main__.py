"""The process with the clients: `python -m launch.serving.http FILE`, the number of a socket to the
process with the device. That one starts it, says what is to be done and ends it."""

import asyncio
import gc
import signal
import socket
import sys

import uvloop

from launch.program import guarded
from launch.serving.channel import receive
from launch.serving.http.link import Link
from launch.serving.http.tasks import Job


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # a whole group may get them
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    job: Job | None = receive(connection)
    if job is None:  # the model could not be opened, which has been told
        return 1
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(job, connection))
    return 0


async def _run(job: Job, connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    transport, link = await loop.create_connection(Link, sock=connection)
    try:
        site = job.recipe.open(link)
        gc.freeze()  # what has been loaded stays, and need not be looked through again and again
        await job.task.run(site, link)
    finally:
        transport.close()


if __name__ == "__main__":
    sys.exit(guarded(main))
