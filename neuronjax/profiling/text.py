"""The summary of a recording for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.profiling.findings import findings
from neuronjax.profiling.records import Profile, ProgramProfile
from neuronjax.profiling.summary import percentages

MOST_PROGRAMS, MOST_KERNELS, MOST_FINDINGS = 12, 8, 8


def time(ns: float) -> str:
    """A time with three significant digits and a unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}" if ns < 1000 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns:.3g} ns"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with columns as wide as needed; the first is flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, ["-" * width for width in widths], *rows):
        first, *rest = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def by_time(profile: Profile) -> list[tuple[ProgramProfile, int]]:
    """Programs with their run counts, longest total time first."""
    pairs = zip(profile.programs, profile.counts, strict=True)
    return sorted(pairs, key=lambda pair: -pair[0].total_ns * pair[1])


def text(profile: Profile) -> str:
    """Programs, the costliest kernels of the first program, and the findings."""
    machine = profile.machine
    pairs = by_time(profile)
    if not pairs:
        return "no program ran while the recording was on."
    head = (
        f"{machine.target} (LNC {machine.lnc}), simulated: {sum(profile.counts)} runs of "
        f"{len(pairs)} programs, {time(profile.total_ns)} on the device"
    )
    parts = [head, _programs(profile, pairs), _kernels(pairs[0][0]), _findings(profile)]
    return "\n\n".join(filter(None, parts))


def _programs(profile: Profile, pairs: list[tuple[ProgramProfile, int]]) -> str:
    names = ("program", "runs", "cores", "time/run", "share", "MFU", "MBU", "busiest")
    whole = sum(program.total_ns * count for program, count in pairs) or 1.0
    rows = []
    for program, count in pairs[:MOST_PROGRAMS]:
        if program.error:
            rows.append((program.name, str(count), str(program.ranks), "not timed", "", "", "", ""))
            continue
        shares = percentages(program, profile.machine)
        busiest = max(program.busy_ns, key=lambda name: program.busy_ns[name], default="")
        rows.append((
            program.name, str(count), str(program.ranks), time(program.total_ns),
            f"{100 * program.total_ns * count / whole:.1f} %",
            f"{100 * shares['mfu_estimated_percent']:.1f} %",
            f"{100 * shares['mbu_estimated_percent']:.1f} %",
            f"{busiest} {100 * program.busy_ns.get(busiest, 0) / (program.total_ns or 1):.0f} %",
        ))  # fmt: skip
    left = len(pairs) - len(rows)
    more = f"\n… and {left} more, in summary.json" if left else ""
    return table(names, rows) + more


@dataclass
class _Kernels:
    """Kernels with the same name, source line and limiting resource."""

    name: str
    source: str
    critical: str
    runs: int = 0
    time_ns: float = 0.0


def _kernel_groups(program: ProgramProfile) -> list[_Kernels]:
    """Kernels grouped by name, source line and limiting resource, costliest first."""
    rows: dict[tuple[str, str, str], _Kernels] = {}
    for kernel in program.kernels:
        key = (kernel.name, kernel.source, kernel.critical)
        row = rows.setdefault(key, _Kernels(*key))
        row.runs += kernel.runs
        row.time_ns += kernel.time_ns
    return sorted(rows.values(), key=lambda row: -row.time_ns)


def _kernels(program: ProgramProfile) -> str:
    costly = _kernel_groups(program)[:MOST_KERNELS]
    whole = sum(kernel.time_ns for kernel in program.kernels) or 1.0
    rows = [
        (row.name, str(row.runs), time(row.time_ns), f"{100 * row.time_ns / whole:.1f} %",
         row.critical, row.source)
        for row in costly
    ]  # fmt: skip
    names = (f"kernel of {program.name}", "runs", "time", "share", "limited by", "line")
    return table(names, rows) if rows else ""


def _findings(profile: Profile) -> str:
    worst = findings(profile)[:MOST_FINDINGS]
    return "\n".join(f"* {finding.program}: {finding.what} {finding.remedy}" for finding in worst)
