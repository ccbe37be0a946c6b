"""Two recordings side by side: metrics by program, and cost by source line."""

from __future__ import annotations

from dataclasses import dataclass

from neuronjax.profiling.costs import by_line
from neuronjax.profiling.records import Profile, ProgramProfile
from neuronjax.profiling.summary import names_of, summary
from neuronjax.profiling.text import table, time

MOST_LINES = 15
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`metrics` under the summary's names; `lines` in ns per run."""

    titles: tuple[str, str]
    metrics: tuple[Row, ...]
    lines: tuple[Row, ...]


def compare(before: Profile, after: Profile) -> Comparison:
    """Compares programs of the same name; lines are matched by file, line number and program."""
    first = dict(zip(names_of(before), before.programs, strict=True))
    second = dict(zip(names_of(after), after.programs, strict=True))
    names = [*first, *(name for name in second if name not in first)]
    metrics: list[Row] = []
    lines: list[Row] = []
    for name in names:
        old, new = first.get(name), second.get(name)
        metrics += _metrics(name, (old, before), (new, after))
        lines += _lines(name, old, new)
    lines.sort(key=lambda row: -abs((row.after or 0) - (row.before or 0)))
    return Comparison(
        titles=(_title(before), _title(after)), metrics=tuple(metrics), lines=tuple(lines)
    )


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


def text(before: Profile, after: Profile) -> str:
    """The comparison as two tables for a terminal."""
    comparison = compare(before, after)
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
            *("" if ns is None else time(ns) for ns in (row.before, row.after)),
            _change(row),
        )
        for row in comparison.lines[:MOST_LINES]
    ]
    parts = [head]
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
        return time(value * 1e9)
    return f"{value:,.0f}"


def _change(row: Row) -> str:
    if row.change is None:
        return "new" if not row.before and row.after else "gone" if row.before else ""
    return f"{100 * row.change:+.1f} %"
