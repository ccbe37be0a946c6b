"""The summary of a recording for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.display import counted, duration
from neuronjax.errors import shown_line
from neuronjax.profiling.findings import Finding, findings
from neuronjax.profiling.phases import one_off, ranked
from neuronjax.profiling.records import Profile, ProgramProfile
from neuronjax.profiling.session import sentence
from neuronjax.profiling.summary import percentages

WIDTH = 100
"""Columns of the lines of findings."""

MOST_PROGRAMS, MOST_KERNELS, MOST_FINDINGS = 12, 8, 8


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with columns as wide as needed; the first is flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, ["-" * width for width in widths], *rows):
        first, *rest = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def text(profile: Profile) -> str:
    """Programs, the costliest kernels of the first program, and the findings."""
    machine = profile.machine
    order = ranked(profile)
    if not order:
        return "no program ran during the recording."
    runs = counted(sum(profile.counts), "run")
    head = (
        f"{machine.target} (LNC {machine.lnc}), simulated: {runs} of "
        f"{counted(len(order), 'program')}, {duration(profile.total_ns)} on the device"
    )
    costliest = profile.programs[order[0]]
    head = "\n".join(filter(None, (head, textwrap.fill(sentence(profile), WIDTH))))
    parts = [
        head, _programs(profile, order), _caveats(profile, order), _kernels(costliest),
        _findings(profile),
    ]  # fmt: skip
    return "\n\n".join(filter(None, parts))


def _programs(profile: Profile, order: list[int]) -> str:
    names = ("program", "runs", "cores", "time/run", "share", "MFU", "MBU", "busiest")
    times = [profile.programs[number].total_ns * profile.counts[number] for number in order]
    whole = sum(times) or 1.0
    aside = one_off(profile)
    work = [number for number in order if number not in aside]
    rows = []
    for number in work[:MOST_PROGRAMS]:
        program, count = profile.programs[number], profile.counts[number]
        if program.error:
            rows.append((program.name, str(count), str(program.ranks), "not timed", "", "", "", ""))
            continue
        shares = percentages(program, profile.machine)
        busiest = max(program.busy_ns, key=lambda name: program.busy_ns[name], default="")
        rows.append((
            program.name, str(count), str(program.ranks), duration(program.total_ns),
            f"{100 * program.total_ns * count / whole:.1f} %",
            f"{100 * shares['mfu_estimated_percent']:.1f} %",
            f"{100 * shares['mbu_estimated_percent']:.1f} %",
            f"{busiest} {100 * program.busy_ns.get(busiest, 0) / (program.total_ns or 1):.0f} %",
        ))  # fmt: skip
    left = len(work) - len(rows)
    more = f"\n… and {left} more, in summary.json" if left else ""
    if aside:
        spent = sum(times[len(work) :])
        more += (
            f"\npreparation, run once: {counted(len(aside), 'program')}, {duration(spent)}"
            f" ({100 * spent / whole:.1f} %), in report.html and summary.json"
        )
    return table(names, rows) + more


def _caveats(profile: Profile, order: list[int]) -> str:
    """What the times of programs assume, and why programs have none."""
    programs = (profile.programs[number] for number in order)
    said = dict.fromkeys(
        f"{program.name}: {program.caveat}" for program in programs if program.caveat
    )
    lines = [textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in said]
    return "\n".join(["Assumed, or not timed:", *lines[:MOST_PROGRAMS]]) if lines else ""


@dataclass
class _Kernels:
    """Kernels with the same name, source line and limiting resource."""

    name: str
    source: str
    critical: str
    runs: int = 0
    time_ns: float = 0.0
    span_ns: float = 0.0


def _kernel_groups(program: ProgramProfile) -> list[_Kernels]:
    """Kernels grouped by name, source line and limiting resource, costliest first."""
    rows: dict[tuple[str, str, str], _Kernels] = {}
    for kernel in program.kernels:
        key = (kernel.name, kernel.source, kernel.critical)
        row = rows.setdefault(key, _Kernels(*key))
        row.runs += kernel.runs
        row.time_ns += kernel.time_ns
        row.span_ns += kernel.span_ns * kernel.runs
    return sorted(rows.values(), key=lambda row: -row.time_ns)


def _kernels(program: ProgramProfile) -> str:
    costly = _kernel_groups(program)[:MOST_KERNELS]
    whole = sum(kernel.time_ns for kernel in program.kernels) or 1.0
    rows = [
        (
            shortened(row.name), str(row.runs), duration(row.time_ns),
            f"{100 * row.time_ns / whole:.1f} %", duration(row.span_ns), row.critical,
            shown_line(row.source),
        )
        for row in costly
    ]  # fmt: skip
    names = (f"kernel of {program.name}", "runs", "adds", "share", "span", "limited by", "line")
    return table(names, rows) if rows else ""


def shortened(name: str, most: int = 44) -> str:
    """A name whose end is left out if it is too long for a table."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _findings(profile: Profile) -> str:
    worst = [finding for finding in findings(profile) if not finding.is_one_off][:MOST_FINDINGS]
    if not worst:
        return ""
    rows = [_finding(finding, profile.total_ns) for finding in worst]
    return "\n".join(["What costs time, and the most that a fix could save:", *rows])


def _finding(finding: Finding, whole_ns: float) -> str:
    """A finding and its remedy, with its share in a column of its own."""
    share = f"{100 * finding.cost_ns / (whole_ns or 1):.1f} %".rjust(7)
    indent = " " * (len(share) + 2)
    return "\n".join((
        textwrap.fill(
            f"{share}  {finding.programs}: {finding.what}", WIDTH, subsequent_indent=indent
        ),
        textwrap.fill(
            finding.remedy, WIDTH, initial_indent=f"{indent}> ", subsequent_indent=f"{indent}  "
        ),
    ))  # fmt: skip
