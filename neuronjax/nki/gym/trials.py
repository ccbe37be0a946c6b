"""Many kernels of files judged side by side, each in a process of its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from neuronjax.display import Displayed, Table, counted, duration, percent
from neuronjax.errors import ConfigurationError, NeuronError, shown_line
from neuronjax.nki.gym.evaluation import OK, STATUSES, Document
from neuronjax.nki.gym.limits import Limits
from neuronjax.nki.targets import chip_of

MOST_ROWS = 20
"""Candidates in a table: the best."""
_MOST_WORDS = 100

_HEAD = ("", "kernel", "on device", "bound", "largest error", "costliest line")

Shape = tuple[tuple[int, ...], str]
"""A shape and the name of a dtype."""


@dataclass(frozen=True, repr=False)
class Trials(Displayed):
    """The evaluations of candidates, as JSON, in the order in which they were given."""

    target: str
    limits: Limits
    evaluations: Sequence[Document]

    @property
    def best(self) -> list[Document]:
        """The evaluations, best first: those that are ok by time, where it is known before where it
        assumes trips of loops, then the others by status."""
        order = list(STATUSES)
        return sorted(
            self.evaluations,
            key=lambda row: (
                order.index(row["status"]),
                bool(row["assumed"]),
                _time(row),
                row["kernel"],
            ),
        )

    def to_json(self) -> Document:
        """All of it, the same in every run."""
        return {
            "target": self.target,
            "limits": asdict(self.limits),
            "best": [row["kernel"] for row in self.best if row["status"] == OK],
            "evaluations": list(self.evaluations),
        }

    def parts(self) -> Iterator[str | Table]:
        counts = dict.fromkeys(STATUSES, 0)
        for row in self.evaluations:
            counts[row["status"]] += 1
        words = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        yield f"{counted(len(self.evaluations), 'candidate')} on a core of {self.target}: {words}"
        good = [row for row in self.best if row["status"] == OK]
        if good:
            rows = [_row(number, row) for number, row in enumerate(good[:MOST_ROWS], 1)]
            yield Table(rows, head=_HEAD)
        others = [row for row in self.best if row["status"] != OK]
        if others:
            yield Table([*map(_why, others[:MOST_ROWS])], head=("kernel", "status", "why"))


def _time(row: Document) -> float:
    times = row["times"]
    return math.inf if times is None else float(times["device_ns"])


def _row(number: int, row: Document) -> tuple[str, ...]:
    times, values = row["times"], row["values"]
    bound = f"{times['bound']} x{times['distance']:.2f}" if times["distance"] else times["bound"]
    error = max((value["share_of_bound"] for value in values), default=0.0)
    return (
        str(number), shown_line(row["kernel"]), _shown_time(row), bound,
        f"{error:.1%} of the bound" if values else "", _costliest(row),
    )  # fmt: skip


def _shown_time(row: Document) -> str:
    shown = duration(row["times"]["device_ns"])
    return f"{shown}, assumed" if row["assumed"] else shown


def _costliest(row: Document) -> str:
    if not row["lines"]:
        return ""
    line, whole = row["lines"][0], row["times"]["kernel_ns"]
    return f"{Path(line['line']).name} {percent(line['time_ns'], whole)}"


def _why(row: Document) -> tuple[str, ...]:
    reason = row["reason"].partition("\n")[0]
    short = reason if len(reason) <= _MOST_WORDS else f"{reason[:_MOST_WORDS]}…"
    return shown_line(row["kernel"]), row["status"], short


def evaluate_files(
    candidates: Sequence[str],
    task: str | Path | None = None,
    *,
    shapes: Sequence[Shape] = (),
    values: Mapping[str, object] | None = None,
    target: str | None = None,
    processes: int = 1,
    limits: Limits | None = None,
) -> Trials:
    """Judges kernels of files, as `evaluate` does, each in processes of its own with limits.

    A candidate is ``FILE``, ``FILE:KERNEL`` or ``FILE:KERNEL[2]``, in either dialect. Its code runs
    confined: it writes to a folder of its own alone, and opens no socket and no program (with
    Landlock and seccomp where Linux has them, and else by Python's audit hooks, which protect from
    accidents). What does more than it may, or takes more than `limits`, is ended and named.

    Args:
      task: a file with ``inputs()``, ``reference(*inputs)`` and perhaps ``RTOL`` and ``ATOL``,
        which is trusted. None: the arguments have the `shapes` and no values, and `values` by name.
      processes: how many candidates run side by side.

    Raises:
      ConfigurationError: there is no task in the file, or it fails.
    """
    chip = chip_of(target)
    chosen = limits or Limits()
    asked = {
        "candidates": [str(candidate) for candidate in candidates],
        "task": None if task is None else str(task),
        "shapes": list(shapes),
        "values": dict(values or {}),
        "target": chip,
        "processes": processes,
        "limits": asdict(chosen),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", f"{__package__}.runner"],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    answers: dict[int, Document] = {}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        if isinstance(answer, dict):
            raise ConfigurationError(answer["error"])
        answers[answer[0]] = answer[1]
    if len(answers) != len(candidates):
        raise NeuronError(
            f"only {len(answers)} of {len(candidates)} candidates were judged before the process "
            f"that runs them ended with code {done.returncode}; its own words are above."
        )
    return Trials(chip, chosen, [answers[number] for number in range(len(candidates))])
