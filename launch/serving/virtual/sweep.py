"""Many settings, each at many loads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from launch.run_file import write_json
from launch.serving.errors import ServingError
from launch.serving.virtual.report import HEADINGS, KNEE, aligned, cells, knee
from launch.serving.virtual.summary import Summary

_FIRST = 1.0  # requests per second
_DOUBLINGS = 24
_HALVINGS = 5  # of a factor of two: the knee is within 2.2 %


class Case(NamedTuple):
    """A combination of settings that is tried."""

    changes: Mapping[str, str]  # as they were written
    runs: Sequence[Summary]  # none if it is impossible
    why: str = ""  # it is

    @property
    def name(self) -> str:
        """The changed settings as text, such as max_num_seqs=16 mesh=model=32."""
        return " ".join(f"{name}={value}" for name, value in self.changes.items())


def combinations(texts: Sequence[str], known: Sequence[str]) -> list[dict[str, str]]:
    """["max_num_seqs=16/64", "mesh=model=32/model=64"] -> what is set in each of the four cases;
    one without changes for no texts. Raises ServingError for anything else."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name not in known or name in axes or not all(values.split("/")):
            raise ServingError(
                f"--sweep={text}: write NAME=VALUE/VALUE, such as max_num_seqs=16/64, once for "
                f"each of {', '.join(known)}"
            )
        axes[name] = values.split("/")
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def parsed(changes: Mapping[str, str]) -> dict[str, Any]:
    """The values of flags. Raises ServingError for what a flag does not take."""
    values = {}
    for name, text in changes.items():
        try:
            values[name] = flags.FLAGS[name].parser.parse(text)
        except ValueError as error:
            raise ServingError(f"--sweep={name}={text}: {error}") from error
    return values


def search(run: Callable[[float], Summary]) -> list[Summary]:
    """Runs at rates around the highest one that is carried."""
    rate, runs = _FIRST, [run(_FIRST)]
    factor = 2.0 if _is_carried(runs[0]) else 0.5
    for _ in range(_DOUBLINGS):
        rate *= factor
        runs.append(run(rate))
        if _is_carried(runs[-1]) != _is_carried(runs[0]):
            break
    else:
        return sorted(runs, key=lambda summary: summary.rate)
    low, high = min(rate, rate / factor), max(rate, rate / factor)
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        runs.append(run(middle))
        low, high = (middle, high) if _is_carried(runs[-1]) else (low, middle)
    return sorted(runs, key=lambda summary: summary.rate)


def _is_carried(summary: Summary) -> bool:
    return summary.within_slo >= KNEE


def best(cases: Sequence[Case]) -> Case | None:
    """The case with the most tokens per second at its knee; None if none has a knee."""
    knees = [(at.tokens_per_second, case) for case in cases if (at := knee(case.runs)) is not None]
    return max(knees, key=lambda pair: pair[0], default=(0.0, None))[1]


def comparison(cases: Sequence[Case]) -> str:
    """A line for each case, at its knee."""
    rows = [[*cases[0].changes, *HEADINGS]]
    for case in cases:
        at = knee(case.runs)
        rows.append([*case.changes.values(), *(["-"] * len(HEADINGS) if at is None else cells(at))])
    return aligned(rows)


def save(cases: Sequence[Case], folder: Path) -> None:
    """sweep.json: each case with the summary at its knee, or why there is none."""
    leader = best(cases)
    entries = []
    for case in cases:
        at = knee(case.runs)
        entries.append(
            {"settings": case.changes, "why": case.why, "knee": None if at is None else asdict(at)}
        )
    facts = {"best": None if leader is None else leader.changes, "cases": entries}
    write_json(folder / "sweep.json", facts)
