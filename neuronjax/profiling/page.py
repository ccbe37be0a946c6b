"""The HTML report: a self-contained page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from html import escape
from importlib import resources
from typing import Any

from neuronjax.display import duration_within
from neuronjax.profiling import splits
from neuronjax.profiling.compare import Comparison, compare
from neuronjax.profiling.costs import Cost, by_layer, by_line
from neuronjax.profiling.events import MOST_RUNS_OF_KERNEL, launches
from neuronjax.profiling.findings import findings
from neuronjax.profiling.mesh_traffic import described
from neuronjax.profiling.phases import one_off, ranked
from neuronjax.profiling.records import KernelProfile, MachineFacts, Profile, ProgramProfile
from neuronjax.profiling.session import host_phases, sentence
from neuronjax.profiling.summary import names_of, percentages
from neuronjax.profiling.trust import range_of_run
from neuronjax.timing.timeline import sampled

MOST_RUNS = 3_000
"""Runs that the page shows individually."""

MOST_PHASES = 3_000
"""Phases of the host that the page shows, the longest."""

MOST_PROGRAMS = 40

_ASSETS = "neuronjax.profiling.assets"

SCRIPTS = (
    "helpers.js", "lanes.js", "timeline.js", "charts.js", "memory.js", "session.js", "report.js",
    "comparison.js", "start.js",
)  # fmt: skip
"""The code of the page, in order."""


def report(profile: Profile) -> str:
    """The report on a recording, as HTML."""
    machine = profile.machine
    title = f"{machine.target}, LNC {machine.lnc}"
    return _page(f"Profile: {title}", {"kind": "profile", **_data(profile)})


def comparison(before: Profile, after: Profile) -> str:
    """The report that compares two recordings, as HTML."""
    compared: Comparison = compare(before, after)
    return _page("Comparison of two profiles", {"kind": "comparison", **asdict(compared)})


def _page(title: str, data: Mapping[str, Any]) -> str:
    """Fills styles, code and data into the template; an unescaped ``</`` would end the data."""
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    parts = {
        "title": escape(title),
        "css": _asset("page.css"),
        "js": "\n".join(map(_asset, SCRIPTS)),
        "data": text,
    }
    page = _asset("page.html")
    for name, part in parts.items():
        page = page.replace(f"@@{name}@@", part)
    return page


def _asset(name: str) -> str:
    return resources.files(_ASSETS).joinpath(name).read_text(encoding="utf-8")


def _data(profile: Profile) -> dict[str, Any]:
    order = ranked(profile)[:MOST_PROGRAMS]
    aside = one_off(profile)
    names = names_of(profile)
    return {
        "machine": asdict(profile.machine),
        "total": profile.total_ns,
        "session": profile.host_ns,
        "session_text": sentence(profile),
        "phases": sorted(host_phases(profile), key=lambda phase: phase.start_ns - phase.end_ns)[
            :MOST_PHASES
        ],
        "executions": sum(profile.counts),
        "program_count": len(profile.programs),
        "programs": [
            {"name": names[number], "count": profile.counts[number], "once": number in aside,
             "mesh": described(profile.programs[number], profile.machine),
             "splits": splits.described(profile.programs[number]),
             **_program(profile.programs[number], profile)}
            for number in order
        ],
        "runs": [
            [order.index(run.program), list(run.cores), round(run.start_ns, 3)]
            for run in profile.runs[:MOST_RUNS]
            if run.program in order
        ],
        "findings": [asdict(finding) for finding in findings(profile)],
    }  # fmt: skip


def _program(program: ProgramProfile, profile: Profile) -> dict[str, Any]:
    return {
        "ranks": program.ranks,
        "error": program.error,
        "total": program.total_ns,
        **_trust(program, profile.machine),
        "launch": program.launch_ns,
        "busy": dict(program.busy_ns),
        "bounds": dict(program.bounds_ns),
        "share": percentages(program, profile.machine),
        "flops": program.model_flops,
        "work": dict(program.work),
        "hbm": dict(program.hbm_bytes),
        "assumed": list(program.assumed),
        "held": [list(tensor) for tensor in program.held],
        "levels": {
            memory: [(round(at, 3), nbytes) for at, nbytes in levels]
            for memory, levels in program.levels.items()
        },
        "launches": launches(program),
        "kernels": [_kernel(kernel) for kernel in program.kernels],
        "lines": _costs(by_line(program)),
        "layers": _costs(by_layer(program)),
        "opcodes": [
            [opcode.engine, opcode.opcode, opcode.count, opcode.time_ns]
            for opcode in program.opcodes
        ],
    }


def _trust(program: ProgramProfile, machine: MachineFacts) -> dict[str, str]:
    """The range in which four of five measurements of a run would lie, and what it rests on."""
    trusted = range_of_run(program, machine)
    if trusted is None:
        return {}
    _, times = duration_within(program.total_ns, trusted.low_ns, trusted.high_ns)
    return {"range": times, "basis": trusted.basis}


def _kernel(kernel: KernelProfile) -> dict[str, Any]:
    work = kernel.work
    return {
        "name": kernel.name,
        "path": kernel.path,
        "ops": ", ".join(kernel.operations),
        "source": kernel.source,
        "runs": kernel.runs,
        "start": round(kernel.start_ns, 3),
        "end": round(kernel.end_ns, 3),
        "span": round(kernel.span_ns, 3),
        "added": round(kernel.added_ns, 3),
        "drawn": [
            (round(start, 3), round(end, 3))
            for start, end in sampled(kernel.in_time, MOST_RUNS_OF_KERNEL)
        ],
        "critical": kernel.critical,
        "busy": {name: round(time, 1) for name, time in kernel.busy_ns.items() if time},
        "flops": work.get("hardware_flops", 0),
        "transposes": work.get("transpose_flops", 0),
        "hbm": work.get("hbm_read_bytes", 0) + work.get("hbm_write_bytes", 0),
        "dma": [work.get("dma_transfer_count", 0), work.get("dma_transfer_total_bytes", 0)],
        "waits": {name: round(time, 1) for name, time in kernel.tensor_waits_ns.items()},
        "spans": [
            [span.lane, span.mnemonic, round(span.start, 3), round(span.end, 3), span.after]
            for span in kernel.spans
        ],
    }


def _costs(costs: Mapping[str, Cost]) -> list[dict[str, Any]]:
    return [{"name": name, **asdict(cost)} for name, cost in costs.items()]
