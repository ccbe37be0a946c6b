"""What the processes of a trial do: read the task, trace a candidate, judge what it has written.

A candidate's code runs in a process of its own, which hands on nothing but the program that it has
written, as text; another process, in which no stranger's code runs, computes its values and time.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from neuronjax import native_kernels
from neuronjax.errors import NeuronError
from neuronjax.nki.arrays import is_array
from neuronjax.nki.calls import call
from neuronjax.nki.gym import evaluation
from neuronjax.nki.gym.evaluation import Document, Evaluation, described
from neuronjax.nki.gym.files import Place, Task, kernel_at, task_at
from neuronjax.nki.gym.limits import Guard, Limits, limit, out_of_memory, readable_roots
from neuronjax.nki.gym.sandbox import confine


@dataclass(frozen=True)
class Candidate:
    """A kernel of a file, as the user names it."""

    text: str
    target: str

    @property
    def place(self) -> Place:
        """The place of the candidate's kernel."""
        return Place.of(self.text)

    def fails(self, status: str, reason: str) -> Document:
        """The evaluation of a candidate of which nothing but a reason is known."""
        document = Evaluation(kernel=self.text, target=self.target, status=status, reason=reason)
        return document.to_json()


def read_task(path: Path, store: Path) -> bytes:
    """The shapes of a task, pickled, or a text that says what is wrong with it; all of it goes to a
    file, which no candidate can read."""
    try:
        task = task_at(path)
        store.write_bytes(pickle.dumps(task))
    except (NeuronError, OSError) as error:
        return pickle.dumps(str(error))
    except Exception as error:
        return pickle.dumps(f"the task fails: {described(error)}")
    positional, named = jax.tree.map(_shape_of, (task.positional, dict(task.named)))
    return pickle.dumps(Task(positional, named, None, task.bounds))


def trace(
    candidate: Candidate,
    task: Task,
    limits: Limits,
    folder: Path,
    hidden: Sequence[Path],
    send: Callable[[bytes], None],
) -> bytes:
    """The program that a candidate writes for arguments of the task's shapes, with its notes, as
    JSON; or a status and a reason, if it writes none. Its output goes to a file in `folder`,
    `hidden` are the task's files, and `send` takes its last words."""
    file = candidate.place.path.resolve()

    def end(reason: str) -> None:
        send(_said(evaluation.ENDED, reason))
        os._exit(0)

    _into(folder)
    confine(folder, readable_roots(file))
    sys.addaudithook(Guard(file, folder, readable_roots(file), hidden, end))
    limit(limits, file, end)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            kernel = kernel_at(Place(file, candidate.place.name, candidate.place.grid))
            called = call(kernel.function, task.positional, task.named)
            traced = kernel.compile(called, candidate.target)
        notes = [*traced.notes, *(str(warning.message) for warning in warned)]
        return json.dumps({"program": traced.native.configuration(), "notes": notes}).encode()
    except MemoryError:
        return _said(evaluation.ENDED, out_of_memory(limits))
    except NeuronError as error:
        return _said(evaluation.REFUSED, str(error))
    except (Exception, SystemExit) as error:
        return _said(evaluation.FAILED, described(error))


def _said(status: str, reason: str) -> bytes:
    return json.dumps({"status": status, "reason": reason}).encode()


def judge(
    candidate: Candidate,
    task: Task | Path,
    written: Document,
    limits: Limits,
    send: Callable[[bytes], None],
) -> bytes:
    """The evaluation of what a candidate has written, as JSON, by a task or the file of one."""

    def end(reason: str) -> None:
        send(json.dumps(candidate.fails(evaluation.ENDED, reason)).encode())
        os._exit(0)

    if isinstance(task, Path):
        task = pickle.loads(task.read_bytes())
        assert isinstance(task, Task)
    limit(limits, candidate.place.path.resolve(), end)
    try:
        native = native_kernels.read(written["program"])
        called = [leaf for leaf in jax.tree.leaves((task.positional, task.named)) if is_array(leaf)]
        judged = evaluation.judge(native, task.expected, called, task.bounds, written["notes"])
        document = {**judged.to_json(), "kernel": candidate.text}
    except MemoryError:
        document = candidate.fails(evaluation.ENDED, out_of_memory(limits))
    except (NeuronError, ValueError) as error:
        document = candidate.fails(evaluation.FAILED, str(error))
    return json.dumps(document).encode()


def _into(folder: Path) -> None:
    """Makes a folder this process's own: it works there, and its output goes to a file there."""
    os.chdir(folder)
    tempfile.tempdir = str(folder)
    sys.dont_write_bytecode = True
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _shape_of(leaf: Any) -> object:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array(leaf) else leaf
