"""Two recordings side by side: metrics by program, and cost by source line.

What changed by less than a threshold is left out: times of programs and lines as a share of their
program, other metrics as a share of themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from neuronjax.display import duration
from neuronjax.profiling.costs import by_line
from neuronjax.profiling.records import Profile, ProgramProfile
from neuronjax.profiling.summary import S, names_of, summary
from neuronjax.profiling.text import table

MOST_LINES = 15

LEAST_CHANGE = 0.01
"""The threshold unless another is given."""

NO_LINE = "(no line)"

METRICS = (
    "total_time", "mfu_estimated_percent", "hfu_estimated_percent", "mbu_estimated_percent",
    "tensor_engine_active_time", "vector_engine_active_time", "scalar_engine_active_time",
    "gpsimd_engine_active_time", "dma_active_time", "cc_op_active_time", "model_flops",
    "hardware_flops", "transpose_flops", "hbm_read_bytes", "hbm_write_bytes", "spill_save_bytes",
    "spill_reload_bytes", "dma_transfer_count",
)  # fmt: skip
"""Fields of the summary that are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A number in both recordings; None where a recording lacks it."""

    program: str
    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """Relative change; None where it has no meaning."""
        if not self.before or self.after is None:
            return None
        return self.after / self.before - 1

    @property
    def is_one_sided(self) -> bool:
        """Whether only one of the recordings has it."""
        return not self.before or not self.after


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`metrics` under the summary's names; `lines` in ns per run."""

    titles: tuple[str, str]
    metrics: tuple[Row, ...]
    lines: tuple[Row, ...]

    def changed(self, least: float) -> Comparison:
        """Only what changed by a share of `least` or more."""
        totals = {row.program: row for row in self.metrics if row.name == "total_time"}

        def matters(row: Row) -> bool:
            if row.change is not None and not row.name.endswith("_percent"):
                return abs(row.change) >= least
            return row.is_one_sided or abs((row.after or 0) - (row.before or 0)) >= least

        def weighs(row: Row) -> bool:
            total = totals.get(row.program)
            whole = max(total.before or 0, total.after or 0) / S if total else 0
            return abs((row.after or 0) - (row.before or 0)) >= least * whole > 0

        return Comparison(
            titles=self.titles,
            metrics=tuple(filter(matters, self.metrics)),
            lines=tuple(filter(weighs, self.lines)),
        )


def compare(before: Profile, after: Profile) -> Comparison:
    """Compares programs of the same name, those of the same shapes first; lines are matched by
    file, line number and program."""
    metrics: list[Row] = []
    lines: list[Row] = []
    for name, old, new in _match_programs(before, after):
        metrics += _metrics(name, (old, before), (new, after))
        lines += _lines(name, old, new)
    lines.sort(key=lambda row: -abs((row.after or 0) - (row.before or 0)))
    return Comparison(
        titles=(_title(before), _title(after)), metrics=tuple(metrics), lines=tuple(lines)
    )


def _match_programs(
    before: Profile, after: Profile
) -> Iterator[tuple[str, ProgramProfile | None, ProgramProfile | None]]:
    """Pairs of programs under the name in the second recording, else under that in the first."""
    left = defaultdict(list)
    for name, program in zip(names_of(before), before.programs, strict=True):
        left[program.name].append((name, program))
    rest = []
    for name, new in zip(names_of(after), after.programs, strict=True):
        shapes = _shapes(new)
        same = [pair for pair in left[new.name] if _shapes(pair[1]) == shapes]
        if same:
            left[new.name].remove(same[0])
            yield name, same[0][1], new
        else:
            rest.append((name, new))
    for name, new in rest:
        yield name, left[new.name].pop(0)[1] if left[new.name] else None, new
    for pairs in left.values():
        for name, old in pairs:
            yield f"{name} (before)" if name in names_of(after) else name, old, None


def _shapes(program: ProgramProfile) -> tuple[int, tuple[str, ...]]:
    """Cores, and the types of arguments and results, in order of their names."""
    outside = sorted(
        (tensor.name, tensor.dtype)
        for tensor in program.held
        if tensor.kind in ("argument", "result")
    )
    return program.ranks, tuple(dtype for _, dtype in outside)


def _title(profile: Profile) -> str:
    return f"{profile.machine.target}, LNC {profile.machine.lnc}"


def _metrics(
    name: str,
    old: tuple[ProgramProfile | None, Profile],
    new: tuple[ProgramProfile | None, Profile],
) -> list[Row]:
    sides = [
        summary(program, profile.machine) if program and not program.error else {}
        for program, profile in (old, new)
    ]
    return [
        Row(program=name, name=metric, before=sides[0].get(metric), after=sides[1].get(metric))
        for metric in METRICS
        if any(side.get(metric) for side in sides)
    ]


def _lines(name: str, old: ProgramProfile | None, new: ProgramProfile | None) -> list[Row]:
    sides = [_by_line(old), _by_line(new)]
    return [
        Row(program=name, name=line, before=sides[0].get(line), after=sides[1].get(line))
        for line in dict.fromkeys((*sides[0], *sides[1]))
    ]


def _by_line(program: ProgramProfile | None) -> dict[str, float]:
    costs = by_line(program) if program else {}
    return {line or NO_LINE: cost.time for line, cost in costs.items()}


def text(before: Profile, after: Profile, least: float = LEAST_CHANGE) -> str:
    """The comparison as two tables for a terminal, of what changed by a share of `least`."""
    comparison = compare(before, after).changed(least)
    head = f"before: {comparison.titles[0]}; after: {comparison.titles[1]}"
    metrics = [
        (
            row.program,
            row.name,
            _value(row.name, row.before),
            _value(row.name, row.after),
            _change(row),
        )
        for row in comparison.metrics
    ]
    lines = [
        (
            row.name,
            row.program,
            *("" if ns is None else duration(ns) for ns in (row.before, row.after)),
            _change(row),
        )
        for row in comparison.lines[:MOST_LINES]
    ]
    parts = [head]
    if not metrics and not lines:
        parts.append(f"Nothing changed by {100 * least:g} % or more.")
    if metrics:
        parts.append(table(("program", "metric", "before", "after", "change"), metrics))
    if lines:
        parts.append(table(("line", "program", "before", "after", "change"), lines))
    return "\n\n".join(parts)


def _value(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith("_percent"):
        return f"{100 * value:.2f} %"
    if name.endswith("_time"):
        return duration(value * 1e9)
    return f"{value:,.0f}"


def _change(row: Row) -> str:
    if row.change is None:
        return "new" if not row.before and row.after else "gone" if row.before else ""
    return f"{100 * row.change:+.1f} %"
