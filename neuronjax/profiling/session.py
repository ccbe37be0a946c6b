"""The host during a recording, in real time: what it did between the runs of programs.

The host is the machine that emulates. Compilation is that of neuronjax, not of the Neuron compiler;
and while the script waits for values, they are computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neuronjax.display import duration
from neuronjax.profiling.records import DISPATCH, Phase, Profile

REST = "rest"
"""The name of the time between phases."""

_WORDS = {
    "compilation": "compilation", "input": "copies to devices", "dispatch": "dispatch",
    REST: "the script, and waiting for values",
}  # fmt: skip


def host_phases(profile: Profile) -> Iterator[Phase]:
    """All phases, dispatches among them; phases of different threads may overlap."""
    yield from profile.phases
    for run in profile.runs:
        if run.dispatch_ns:
            name = profile.programs[run.program].name
            yield Phase(DISPATCH, name, run.host_ns - run.dispatch_ns, run.host_ns)


def host_times(profile: Profile) -> Mapping[str, int]:
    """Real time in ns of each kind of phase, and of the rest; they add up to the recording's."""
    times = dict.fromkeys(_WORDS, 0)
    reached = 0
    for phase in sorted(host_phases(profile), key=lambda phase: phase.start_ns):
        times[phase.phase] += max(0, phase.end_ns - max(phase.start_ns, reached))
        reached = max(reached, phase.end_ns)
    times[REST] = profile.host_ns - sum(times.values())
    return times


def sentence(profile: Profile) -> str:
    """A sentence on where the host's time went; empty if the recording has no host."""
    if not profile.host_ns:
        return ""
    times = host_times(profile)
    parts = ", ".join(f"{_WORDS[name]} {duration(ns)}" for name, ns in times.items() if ns)
    return f"The session took {duration(profile.host_ns)} of real time on this machine: {parts}."
