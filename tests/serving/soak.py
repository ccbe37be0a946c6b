"""Many clients for minutes, most of them badly behaved: `make soak`.

A server in a process of its own is asked for greedy answers, whole and streamed; some clients
leave in the middle, read slowly, or send what is no request. Answers must be those that were given
before the crowd came, every error a 4xx with a body, and in the end nothing may be held: no slot,
no block, no more than 50 MB more memory than after the first minute.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MEMORY_BYTES = 50e6
CLIENTS = 24
WARM_UP_SECONDS = 60
TEXTS = (
    "The for statement",
    "The while statement is used",
    "An expression",
    "a",
    "The syntax for identifiers in Python is based on",
    "class",
    "The following exceptions are",
    "x = [1, 2, 3]\n",
)
LENGTHS = (1, 7, 24, 48)

# Bodies that are no request, and where they are sent.
MALFORMED: Sequence[tuple[str, bytes]] = (
    ("/v1/completions", b"{"),
    ("/v1/completions", b"\xff\xfe\x00"),
    ("/v1/completions", b"[]"),
    ("/v1/completions", b'{"model": "main"}'),
    ("/v1/completions", b'{"model": "other", "prompt": "a"}'),
    ("/v1/completions", b'{"model": "main", "prompt": 3}'),
    ("/v1/completions", b'{"model": "main", "prompt": "a", "max_tokens": -1}'),
    ("/v1/completions", b'{"model": "main", "prompt": "a", "max_tokens": "many"}'),
    ("/v1/completions", b'{"model": "main", "prompt": "a", "temperature": 99}'),
    ("/v1/completions", b'{"model": "main", "prompt": "a", "logit_bias": {"x": 1}}'),
    ("/v1/completions", json.dumps({"model": "main", "prompt": "a" * 5000}).encode()),
    ("/v1/completions", b'{"model": "main", "prompt": ' + b"[" * 3000 + b"]" * 3000 + b"}"),
    ("/v1/chat/completions", b'{"model": "main", "messages": []}'),
    ("/v1/chat/completions", b'{"model": "main", "messages": [{"role": "x", "content": "a"}]}'),
    (
        "/v1/chat/completions",
        b'{"model": "main", "messages": [{"role": "user", "content": "a"}], "response_format":'
        b' {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no"}}}}',
    ),
    ("/v1/nothing", b"{}"),
)


class WrongError(Exception):
    """The server did what it must not."""


class Answer(NamedTuple):
    status: int
    body: bytes


class Target:
    """A server to be asked."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(
        self, path: str, body: bytes | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which a request has been sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        method = "GET" if body is None else "POST"
        body = body or b""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return reader, writer

    async def ask(self, path: str, body: bytes | None = None, pause: float = 0) -> Answer:
        """The whole answer, read in small pieces with pauses if asked for."""
        reader, writer = await self.open(path, body)
        pieces = []
        while piece := await reader.read(200 if pause else 1 << 16):
            pieces.append(piece)
            await asyncio.sleep(pause)
        writer.close()
        head, _, rest = b"".join(pieces).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 "):
            raise WrongError(f"no answer to {path} {body!r}: {head!r}")
        if b"transfer-encoding: chunked" in head.lower():
            rest = _unchunked(rest)
        return Answer(int(head.split()[1]), rest)


def _unchunked(data: bytes) -> bytes:
    whole = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        whole, data = whole + data[:count], data[count + 2 :]
    return whole


def completion(text: str, length: int, *, stream: bool = False) -> bytes:
    """A greedy request."""
    asked = {"model": "main", "prompt": text, "max_tokens": length, "temperature": 0}
    return json.dumps({**asked, "stream": stream, "ignore_eos": True}).encode()


def text_of(answer: Answer, *, stream: bool) -> str:
    """The text of a completion."""
    if answer.status != 200:
        raise WrongError(f"status {answer.status}: {answer.body[:300]!r}")
    if not stream:
        text: str = json.loads(answer.body)["choices"][0]["text"]
        return text
    lines = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    if lines[-1] != "[DONE]":
        raise WrongError(f"a stream ended with {lines[-1]!r}")
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])


class Crowd:
    """Clients of all kinds, and what they saw."""

    def __init__(self, target: Target, expected: dict[tuple[str, int], str]) -> None:
        self._target, self._expected = target, expected
        self.seen: Counter[str] = Counter()

    async def client(self, seed: int, end: float) -> None:
        """One request after the other until the end."""
        rng = random.Random(seed)
        kinds: Sequence[Callable[[random.Random], Awaitable[str]]] = (
            self._whole,
            self._streamed,
            self._slow,
            self._leaves,
            self._malformed,
        )
        while time.monotonic() < end:
            self.seen[await rng.choice(kinds)(rng)] += 1

    async def _whole(self, rng: random.Random) -> str:
        return await self._compare(rng, stream=False, pause=0, kind="whole")

    async def _streamed(self, rng: random.Random) -> str:
        return await self._compare(rng, stream=True, pause=0, kind="streamed")

    async def _slow(self, rng: random.Random) -> str:
        return await self._compare(rng, stream=True, pause=0.05, kind="slow")

    async def _compare(self, rng: random.Random, *, stream: bool, pause: float, kind: str) -> str:
        key = rng.choice(list(self._expected))
        answer = await self._target.ask("/v1/completions", completion(*key, stream=stream), pause)
        if text_of(answer, stream=stream) != self._expected[key]:
            raise WrongError(f"another answer to {key}: {answer.body!r}")
        return kind

    async def _leaves(self, rng: random.Random) -> str:
        body = completion(rng.choice(TEXTS), 48, stream=rng.random() < 0.7)
        reader, writer = await self._target.open("/v1/completions", body)
        if rng.random() < 0.5:
            await reader.read(rng.randint(1, 600))
        await asyncio.sleep(rng.random() * 0.3)
        writer.transport.abort()
        return "left"

    async def _malformed(self, rng: random.Random) -> str:
        path, body = rng.choice(MALFORMED)
        answer = await self._target.ask(path, body)
        if not 400 <= answer.status < 500 or "error" not in json.loads(answer.body):
            raise WrongError(f"{path} {body[:100]!r}: {answer.status} {answer.body[:300]!r}")
        return "malformed"


async def soak(target: Target, pid: int, minutes: float) -> dict[str, Any]:
    """Runs the crowd; what there was to count. Raises WrongError."""
    expected = {}
    for text in TEXTS:
        for length in LENGTHS:
            answer = await target.ask("/v1/completions", completion(text, length))
            expected[text, length] = text_of(answer, stream=False)
    crowd = Crowd(target, expected)
    seconds = 60 * minutes
    warm = min(WARM_UP_SECONDS, seconds / 4)
    end = time.monotonic() + seconds
    memory: list[float] = []

    async def watch() -> None:
        await asyncio.sleep(warm)
        while time.monotonic() < end:
            memory.append(resident_bytes(pid))
            await asyncio.sleep(5)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for seed in range(CLIENTS):
            group.create_task(crowd.client(seed, end))
    held = await _idle(target)
    memory.append(resident_bytes(pid))
    growth = memory[-1] - memory[0]
    if growth > MEMORY_BYTES:
        raise WrongError(f"memory grew by {growth / 1e6:.1f} MB: {memory}")
    return {"requests": dict(crowd.seen), "memory_growth_mb": growth / 1e6, **held}


async def _idle(target: Target, patience: float = 60) -> dict[str, float]:
    """What is held when nobody asks any more. Raises WrongError if that is anything."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    for _ in range(int(patience)):
        page = (await target.ask("/metrics")).body.decode()
        values = {
            name: float(re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", page, re.MULTILINE)[0])
            for name in names
        }
        if not any(values.values()):
            return values
        await asyncio.sleep(1)
    raise WrongError(f"still held: {values}")


def resident_bytes(pid: int) -> float:
    """Memory of a server's two processes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = [int(Path(f"/proc/{own}/statm").read_text().split()[1]) for own in (pid, *children)]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def start(flags: Sequence[str]) -> tuple["subprocess.Popen[str]", int]:
    """A server in FP32 as IEEE has it, so that answers do not depend on the batch; its port."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "launch.serve", "--port=0", "--served_model_name=main"),
            *("--warm_up=all", *flags),
        ],
        env={**os.environ, "JAX_PLATFORMS": "neuron", "NEURONJAX_NUMERICS": "ieee"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r"at http://[^:]+:(\d+)/v1", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, int(match.group(1))
    raise WrongError("the server has not started")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    arguments, flags = parser.parse_known_args()
    process, port = start(flags)
    try:
        report = asyncio.run(soak(Target(port), process.pid, arguments.minutes))
        print(json.dumps(report))
        process.send_signal(signal.SIGTERM)
        return int(process.wait(60) != 0)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
