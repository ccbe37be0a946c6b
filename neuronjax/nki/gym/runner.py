"""The process that forks those of a trial, and ends them in time.

``python -m neuronjax.nki.gym.runner`` takes what is asked, as JSON, and writes an evaluation in
each line, with the number of its candidate. It has loaded what they need and no thread runs in it,
so a process of a candidate begins at once, and knows nothing of the others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

import jax
import ml_dtypes
import numpy as np

from neuronjax.nki.gym import evaluation, worker
from neuronjax.nki.gym.agreement import Bounds
from neuronjax.nki.gym.evaluation import Document
from neuronjax.nki.gym.files import Task
from neuronjax.nki.gym.limits import Limits, of_signal
from neuronjax.nki.gym.worker import Candidate

_MOST_BYTES = 1 << 30
"""That a process may hand on."""
_CHUNK = 1 << 16

Work = Callable[[Callable[[bytes], None]], bytes]
"""What a process does: given what sends its last words, it returns what it hands on."""


@dataclass
class Child:
    """A process that works, and what it has handed on."""

    number: int
    pipe: int
    deadline: float
    handed_on: bytearray = field(default_factory=bytearray)
    #: Why it was ended; and how it ended, as the system says it.
    reason: str = ""
    status: int = 0

    def end(self, reason: str) -> None:
        """Ends it and all that it has started."""
        self.reason = self.reason or reason
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.number, signal.SIGKILL)


def start(work: Work, patience: float) -> Child:
    """A process of its own group that does some work."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    number = os.fork()
    if number == 0:
        _work(work, reading, writing)
    os.close(writing)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(number, number)
    return Child(number, reading, time.monotonic() + patience)


def _work(work: Work, reading: int, writing: int) -> None:
    """Does the work of a new process, and ends it."""

    def send(data: bytes) -> None:
        while data:
            data = data[os.write(writing, data) :]

    code = 1
    try:
        os.setpgid(0, 0)
        os.close(reading)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        send(work(send))
        code = 0
    finally:
        os._exit(code)


def finished(children: Sequence[Child], patience: float = 0.5) -> Iterator[Child]:
    """Waits for news, and yields the processes that are done."""
    ready, _, _ = select.select([child.pipe for child in children], [], [], patience)
    for child in children:
        if time.monotonic() > child.deadline:
            child.end("it has not ended in time: it sleeps, or waits for what never comes")
        if child.pipe not in ready:
            continue
        data = os.read(child.pipe, _CHUNK)
        child.handed_on += data
        if len(child.handed_on) > _MOST_BYTES:
            child.end("its program is too large to hand on")
        if not data:
            os.close(child.pipe)
            child.end("")  # nothing more comes of it
            _, child.status = os.waitpid(child.number, 0)
            yield child


@dataclass(frozen=True)
class Trial:
    """Candidates, and what they are judged by."""

    candidates: Sequence[Candidate]
    #: Of the arguments nothing but shapes counts.
    task: Task
    limits: Limits
    processes: int
    #: The user's file of the task, and its bytecode.
    hidden: tuple[Path, ...] = ()
    #: The file that has the values of the task; None: there are none.
    values: Path | None = None

    def run(self) -> Iterator[tuple[int, Document]]:
        """The number of each candidate and its evaluation, in the order in which they end."""
        waiting = deque(range(len(self.candidates)))
        working: dict[int, tuple[int, Path, bool]] = {}
        children: list[Child] = []
        try:
            while waiting or children:
                while waiting and len(children) < self.processes:
                    number = waiting.popleft()
                    folder = Path(tempfile.mkdtemp(prefix="neuronjax-candidate-")).resolve()
                    child = self._tracing(number, folder)
                    working[child.number] = number, folder, True
                    children.append(child)
                for child in finished(children):
                    children.remove(child)
                    number, folder, is_trace = working.pop(child.number)
                    shutil.rmtree(folder, ignore_errors=True)
                    answer = self._answer(number, child)
                    if is_trace and "program" not in answer:
                        answer = self._untraced(number, answer)
                    if "program" in answer:
                        judging = self._judging(number, answer)
                        working[judging.number] = number, folder, False
                        children.append(judging)
                    else:
                        yield number, answer
        finally:
            for child in children:
                child.end("the trial was stopped")
                shutil.rmtree(working[child.number][1], ignore_errors=True)

    def _tracing(self, number: int, folder: Path) -> Child:
        candidate = self.candidates[number]
        return start(
            lambda send: worker.trace(candidate, self.task, self.limits, folder, self.hidden, send),
            self.limits.patience_seconds,
        )

    def _judging(self, number: int, written: Document) -> Child:
        candidate = self.candidates[number]
        return start(
            lambda send: worker.judge(
                candidate, self.values or self.task, written, self.limits, send
            ),
            self.limits.patience_seconds,
        )

    def _untraced(self, number: int, answer: Document) -> Document:
        """The evaluation of a candidate that has written no program: whatever its process says of
        itself, all is not well."""
        status, reason = answer.get("status"), answer.get("reason", "it hands on no program")
        if status not in (evaluation.REFUSED, evaluation.FAILED):
            status = evaluation.ENDED
        return self.candidates[number].fails(str(status), str(reason))

    def _answer(self, number: int, child: Child) -> Document:
        """What a process has handed on, if it is whole; else why it is not."""
        reason = child.reason or "it ended its process before it was done"
        with contextlib.suppress(ValueError):
            answer = json.loads(child.handed_on)
            if isinstance(answer, dict):
                return answer
        if os.WIFSIGNALED(child.status) and not child.reason:
            reason = of_signal(os.WTERMSIG(child.status), self.limits)
        return self.candidates[number].fails(evaluation.ENDED, reason)


def read_task(path: Path, values: Path, limits: Limits) -> Task | str:
    """The shapes of the task of a file, which a process of its own reads and whose values it
    writes to another file; or why there is none."""
    child = start(lambda _: worker.read_task(path, values), limits.patience_seconds)
    while not list(finished([child])):
        pass
    if not child.handed_on:
        return f"{path}: the task's process has ended: {child.reason or child.status}"
    answer: Task | str = pickle.loads(bytes(child.handed_on))
    return answer


def _shapes(asked: Document) -> Task:
    arrays = tuple(
        jax.ShapeDtypeStruct(tuple(shape), getattr(ml_dtypes, name, None) or np.dtype(name))
        for shape, name in asked["shapes"]
    )
    return Task(arrays, asked["values"], None, Bounds())


def main(given: TextIO, out: TextIO) -> None:
    """Evaluates the candidates that `given` asks for as JSON, and prints an answer for each on
    `out`."""
    jax.config.update("jax_platforms", "cpu")
    asked = json.load(given)
    limits = Limits(**asked["limits"])
    candidates = [Candidate(text, asked["target"]) for text in asked["candidates"]]
    trial = Trial(candidates, _shapes(asked), limits, asked["processes"])
    with tempfile.TemporaryDirectory(prefix="neuronjax-task-") as folder:
        if asked["task"] is not None:
            file, values = Path(asked["task"]).resolve(), Path(folder) / "values"
            bytecode = Path(importlib.util.cache_from_source(str(file)))
            task = read_task(Path(asked["task"]), values, limits)
            if isinstance(task, str):
                print(json.dumps({"error": task}), file=out, flush=True)
                return
            trial = replace(trial, task=task, hidden=(file, bytecode), values=values)
        for number, document in trial.run():
            print(json.dumps([number, document]), file=out, flush=True)


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
