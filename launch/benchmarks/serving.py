"""Measures what serving costs beside the device: planning, and the way from a step to its
client."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from launch.benchmarks.paired import Measurement, Thunk, compare, summary, time_pairs
from launch.benchmarks.platforms import Settings, devices
from launch.serving.answering import Deliver
from launch.serving.backend import Backend
from launch.serving.config import ServerConfig
from launch.serving.desk import EngineDesk
from launch.serving.engine import Engine, StepRecord
from launch.serving.front import Front
from launch.serving.grammar import Grammars
from launch.serving.http.generation import LanguageModel
from launch.serving.http.tasks import Serve
from launch.serving.listener import bind
from launch.serving.runner.arrays import HEADER
from launch.serving.runner.runner import Runner
from launch.serving.scheduler.buckets import Bucket, Buckets
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.scheduler import Scheduler
from launch.serving.scheduler.sequences import Sequence as Text
from launch.source import byte_level
from models.decoder.config import DecoderConfig
from models.parameters import axis_names_of, split
from models.sharding import parameter_shardings

NAME = "bench"
MANY = 256  # sequences that are planned
ROWS, NEW = 16, 96  # clients at once, tokens of an answer
_PROMPT = "The "
_CLIENTS = """
import json, socket, sys, threading
port, rows, body = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
def ask():
    with socket.create_connection(("127.0.0.1", port)) as connection:
        # Clients have machines of their own: here they wake up when there is much to read.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 20)
        head = "POST /v1/completions HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n"
        head += f"Content-Type: application/json\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
        connection.sendall(head.encode() + body)
        while connection.recv(1 << 16):
            pass
print("ready", flush=True)
for line in sys.stdin:
    threads = [threading.Thread(target=ask) for _ in range(rows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("done", flush=True)
"""


def planning(settings: Settings, repetitions: int) -> Measurement:
    """Milliseconds of planning and completing a step of decoding of 256 sequences."""
    buckets = Buckets((MANY,), (1,), (8,), (64,), 8)
    scheduler = Scheduler(SchedulerLimits(2048, 1 << 14, 32, buckets, prefills_per_decode=1 << 20))
    for index in range(MANY):
        scheduler.submit(Text(str(index), [index % 7], 2000))
    tokens = np.zeros(MANY, np.int32)
    step = scheduler.plan()
    while step is not None and not (step.is_decode and len(step.slots) == MANY):
        scheduler.complete(step, tokens)
        step = scheduler.plan()
    assert step is not None
    scheduler.complete(step, tokens)
    milliseconds = []
    for _ in range(repetitions):
        began = time.perf_counter()
        step = scheduler.plan()
        assert step is not None
        scheduler.complete(step, tokens)
        milliseconds.append(1e3 * (time.perf_counter() - began))
    return summary(milliseconds)


def streamed_steps(settings: Settings, repetitions: int) -> Measurement:
    """Ratio of a step of decoding while 16 clients of another process are sent its tokens to the
    same step of the device alone, one handed over while the one before runs."""
    with _streaming(settings) as streaming:
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(1 + repetitions):
            streaming.ask()
            ended = streaming.decoding()
            bare = streaming.run([ended[-1].bucket] * len(ended))
            for own, entries in zip(seconds, (ended, bare), strict=True):
                own.append((entries[-1].time - entries[0].time) / (len(entries) - 1))
        served, alone = seconds
        return compare(served[1:], alone[1:], how="ratio")


def streamed_answers(settings: Settings, repetitions: int) -> Measurement:
    """Ratio of streaming whole answers to 16 clients that ask at once to the device's steps for
    them: with their requests, and until the last one has read its answer. How many steps are
    prefills depends on when the requests come, so each time they are those of the answers just
    before."""
    with _streaming(settings) as streaming:

        def steps() -> None:
            streaming.run([entry.bucket for entry in streaming.ended])

        pairs = [
            time_pairs(streaming.ask, steps, 1, warmup=int(n == 0)) for n in range(repetitions)
        ]
        served, bare = (list(chain(*seconds)) for seconds in zip(*pairs, strict=True))
        return compare(served, bare, how="ratio")


class _Ended(NamedTuple):
    """A step that is over."""

    bucket: Bucket
    time: float  # seconds of this machine's clock


class _Streaming(NamedTuple):
    """Clients of a server, and the device alone."""

    ended: list[_Ended]  # steps of the last answers
    clients: Thunk
    run: Callable[[Sequence[Bucket]], list[_Ended]]

    def ask(self) -> None:
        """All clients ask at once and read their answers."""
        self.ended.clear()
        self.clients()

    def decoding(self) -> list[_Ended]:
        """The last answers' steps after the last prompt."""
        prompts = [n for n, entry in enumerate(self.ended) if entry.bucket.tokens > 1]
        return self.ended[prompts[-1] + 1 :]


@contextmanager
def _streaming(settings: Settings) -> Iterator[_Streaming]:
    (device,) = devices(settings.platform, 1)
    runner, limits = _make_bundled_runner(device)
    ended: list[_Ended] = []

    def note(record: StepRecord) -> None:
        ended.append(_Ended(record.step.bucket, time.perf_counter()))

    engine = partial(Engine, runner, limits, on_step=note)
    with _server(engine, limits) as port, _clients(port) as clients:
        yield _Streaming(ended, clients, _steps(runner, limits.buckets))


def _make_bundled_runner(device: jax.Device) -> tuple[Runner, SchedulerLimits]:
    """The bundled model with random weights."""
    model = byte_level(DecoderConfig()).model
    graph, parameters = split(model.architecture.build(model.config))
    mesh = Mesh(np.array([[device]]), ("data", "model"))
    axes = axis_names_of(graph, parameters)
    placed = jax.device_put(parameters, parameter_shardings(mesh, parameters, axes))
    buckets = Buckets((ROWS,), (ROWS,), (8,), (8,), 8 * ROWS)
    limits = SchedulerLimits(128, 8 * ROWS, 16, buckets)
    runner = Runner(graph, placed, mesh, limits, vocab_size=model.config.vocab_size)
    programs = runner.programs
    runner.warm_up([*limits.buckets, *((variant, ROWS) for variant in range(2))])
    assert programs.compiled.is_ready(next(iter(limits.buckets)))
    return runner, limits


def _steps(runner: Runner, buckets: Buckets) -> Callable[[Sequence[Bucket]], list[_Ended]]:
    """Runs the programs of steps of such shapes, without anything about them."""
    programs = {
        bucket: (runner.programs.get(bucket), runner.programs.get((0, bucket.rows)))
        for bucket in buckets
    }
    inputs = {bucket: _inputs(bucket) for bucket in programs}
    rows = runner.settings_of_slots(np.arange(ROWS))

    def run(steps: Sequence[Bucket]) -> list[_Ended]:
        ended: list[_Ended] = []
        under_way: deque[tuple[Bucket, jax.Array]] = deque()

        def end() -> None:
            bucket, drawn = under_way.popleft()
            np.asarray(drawn)
            ended.append(_Ended(bucket, time.perf_counter()))

        for number, bucket in enumerate(steps):
            inputs[bucket][:, 0] = number if bucket.tokens == 1 else 0
            drawn = runner.run_programs(*programs[bucket], inputs[bucket], rows)
            under_way.append((bucket, drawn))
            if number:
                end()
        end()
        return ended

    return run


def _inputs(bucket: Bucket) -> np.ndarray:
    """The inputs of a step in which every row has all tokens that it can."""
    inputs = np.zeros((bucket.rows, HEADER + bucket.tokens + bucket.blocks), np.int32)
    inputs[:, 1] = bucket.tokens
    inputs[:, 2] = np.arange(bucket.rows)
    blocks = 1 + np.arange(bucket.rows * bucket.blocks)
    inputs[:, HEADER + bucket.tokens :] = blocks.reshape(bucket.rows, -1)
    return inputs


@contextmanager
def _server(engine: Callable[[Deliver], Engine], limits: SchedulerLimits) -> Iterator[int]:
    """The port of a server as `launch.serve` starts it, with the engine in this process."""
    recipe = LanguageModel(
        name=NAME,
        files=Path("none"),
        chat_template=None,
        vocab_size=256,
        stop_tokens=(),
        limits=limits,
        created=1,
    )
    config = ServerConfig(port=0)
    with (
        bind(config) as listener,
        Front([listener]) as front,
        EngineDesk(engine, Grammars(None, 256)) as desk,
    ):
        front.start(Backend(recipe, desk), Serve(listener.fileno(), config, NAME))
        yield int(listener.getsockname()[1])
        front.halt()


@contextmanager
def _clients(port: int) -> Iterator[Thunk]:
    """Yields a function that lets all clients ask at once and waits for their answers."""
    asked = {"model": NAME, "prompt": _PROMPT, "max_tokens": NEW, "temperature": 0, "stream": True}
    command: Sequence[str] = (sys.executable, "-c", _CLIENTS, str(port), str(ROWS))
    with subprocess.Popen(
        [*command, json.dumps(asked)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        source, sink = process.stdout, process.stdin
        source.readline()

        def ask() -> None:
            sink.write("ask\n")
            sink.flush()
            assert source.readline() == "done\n"

        try:
            yield ask
        finally:
            sink.close()
