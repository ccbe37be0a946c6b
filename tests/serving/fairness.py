"""Measures small requests beside a client that asks for a great deal: `python -m
tests.serving.fairness [--much=200] [--n=16]`, on a tiny model.

Prints the 95th percentile alone, beside the other client, and beside connections that send nothing.
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tests.serving.http_server import LIMITS, Running, byte_model, running

PATH = "/v1/completions"


def ask(server: Running, key: str, **body: object) -> int:
    """The status of an answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    data = json.dumps({"prompt": "a", **body}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + PATH, data, headers)) as it:
            it.read()
            return int(it.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:  # the server has ended
        return 0


def measure(server: Running, count: int = 60) -> float:
    """The 95th percentile of the seconds that small requests take, one after the other."""
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        assert ask(server, "small", max_tokens=4) == 200
        seconds.append(time.perf_counter() - begin)
    return float(np.percentile(seconds, 95))


@contextmanager
def hog(server: Running, much: int, n: int) -> Iterator[None]:
    """A client that asks for so many bodies at once, again and again, until the block ends."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            ask(server, "much", max_tokens=100, n=n)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(much)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    yield
    over.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--much", type=int, default=200)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--silent", type=int, default=1000)
    arguments = parser.parse_args()
    with running(byte_model().runner(LIMITS), max_waiting=8192) as server:
        measure(server, 10)
        alone = measure(server)
        connections = [
            socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=30)  # type: ignore[arg-type]
            for _ in range(arguments.silent)
        ]
        silent = measure(server)
        for connection in connections:
            connection.close()
        with hog(server, arguments.much, arguments.n):
            beside = measure(server)
        print(
            f"alone {alone * 1e3:.1f} ms; beside {arguments.silent} silent connections "
            f"{silent / alone:.2f} times; beside {arguments.much} x n={arguments.n} "
            f"{beside / alone:.2f} times"
        )
        server.front.kill()


if __name__ == "__main__":
    main()
