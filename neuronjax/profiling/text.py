"""The summary of a recording for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.profiling.findings import findings
from neuronjax.profiling.records import Profile, ProgramProfile
from neuronjax.profiling.summary import percentages

MOST_PROGRAMS, MOST_KERNELS, MOST_FINDINGS = 12, 8, 8


def time(ns: float) -> str:
    """A time with three digits and its unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}" if ns < 1000 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns:.3g} ns"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need; the first is flush left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, ["-" * width for width in widths], *rows):
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def by_time(profile: Profile) -> list[tuple[ProgramProfile, int]]:
    """Programs with their counts, those that took longest first."""
    pairs = zip(profile.programs, profile.counts, strict=True)
    return sorted(pairs, key=lambda pair: -pair[0].total_ns * pair[1])


def text(profile: Profile) -> str:
    """Programs, the costliest kernels of the first one, and what was found."""
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
    whole = sum(each.total_ns * count for each, count in pairs) or 1.0
    rows = []
    for each, count in pairs[:MOST_PROGRAMS]:
        if each.error:
            rows.append((each.name, str(count), str(each.ranks), "not timed", "", "", "", ""))
            continue
        shares = percentages(each, profile.machine)
        busiest = max(each.busy_ns, key=lambda name: each.busy_ns[name], default="")
        rows.append((
            each.name, str(count), str(each.ranks), time(each.total_ns),
            f"{100 * each.total_ns * count / whole:.1f} %",
            f"{100 * shares['mfu_estimated_percent']:.1f} %",
            f"{100 * shares['mbu_estimated_percent']:.1f} %",
            f"{busiest} {100 * each.busy_ns.get(busiest, 0) / (each.total_ns or 1):.0f} %",
        ))  # fmt: skip
    left = len(pairs) - len(rows)
    more = f"\n… and {left} more, in summary.json" if left else ""
    return table(names, rows) + more


@dataclass
class _Kernels:
    """Kernels of one name and line."""

    name: str
    source: str
    critical: str
    runs: int = 0
    time_ns: float = 0.0


def _alike(program: ProgramProfile) -> list[_Kernels]:
    """Kernels by name, line and what limits them; the costliest first."""
    found: dict[tuple[str, str, str], _Kernels] = {}
    for each in program.kernels:
        key = (each.name, each.source, each.critical)
        row = found.setdefault(key, _Kernels(*key))
        row.runs += each.runs
        row.time_ns += each.time_ns
    return sorted(found.values(), key=lambda row: -row.time_ns)


def _kernels(program: ProgramProfile) -> str:
    costly = _alike(program)[:MOST_KERNELS]
    whole = sum(each.time_ns for each in program.kernels) or 1.0
    rows = [
        (each.name, str(each.runs), time(each.time_ns), f"{100 * each.time_ns / whole:.1f} %",
         each.critical, each.source)
        for each in costly
    ]  # fmt: skip
    names = (f"kernel of {program.name}", "runs", "time", "share", "limited by", "line")
    return table(names, rows) if rows else ""


def _findings(profile: Profile) -> str:
    found = findings(profile)[:MOST_FINDINGS]
    return "\n".join(f"* {each.program}: {each.what} {each.remedy}" for each in found)
