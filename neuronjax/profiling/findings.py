"""What is slow in a recording, why, and what to do about it.

The rules in `causes` begin with those of Neuron Explorer's recommendations (transposes above a
tenth, spill reloads above a quarter of reads, small DMAs) and go on with what only a simulation
knows: what an engine waited for, and which collectives no computation hides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from neuronjax.display import counted
from neuronjax.profiling.causes import between_kernels, engines, memory
from neuronjax.profiling.causes.cause import Rule
from neuronjax.profiling.phases import one_off
from neuronjax.profiling.records import Profile

LEAST_SHARE = 0.02
"""Findings that cost a smaller share of the recording's time are not reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause of lost time. `cost_ns` is the most that removing it saves, over all runs.

    `is_one_off` says that the program only prepares others. `others` are more programs in which the
    same was found, at the same line and with the same remedy.
    """

    rule: str
    program: str
    what: str
    remedy: str
    cost_ns: float
    kernel: str = ""
    source: str = ""
    is_one_off: bool = False
    others: tuple[str, ...] = ()

    @property
    def programs(self) -> str:
        """The program in which the finding was made, and how many more."""
        more = f" and {counted(len(self.others), 'more program')}" if self.others else ""
        return self.program + more


RULES: dict[str, tuple[Rule, str]] = {
    "threefry": (engines.threefry, "random numbers are drawn with Threefry's integer arithmetic"),
    "gpsimd-bound": (engines.gpsimd, "GpSimd limits kernels"),
    "elementwise-bound": (engines.elementwise, "Vector or Scalar limits kernels"),
    "tensor-idle": (engines.tensor_idle, "the Tensor engine waits in kernels with products"),
    "transposes": (engines.transposes, "transposes take a tenth of the Tensor engine's work"),
    "slow-transfers": (memory.slow_transfers, "DMA limits kernels without reaching its rate"),
    "spills": (memory.spills, "a quarter of what is read from HBM are intermediate values"),
    "memory-bound": (memory.memory_bound, "HBM is busy for most of the run"),
    "small-collectives": (
        between_kernels.small_collectives,
        "collectives follow one another, and most of their time is start-up",
    ),
    "exposed-collectives": (between_kernels.exposed_collectives, "no kernel hides collectives"),
    "waiting": (
        between_kernels.waiting,
        "nothing works, as in the steps of a loop with small arrays",
    ),
    "launch": (between_kernels.launch, "a program is as short as its launch"),
}
"""Name of a rule -> its function, and when it finds something."""


def findings(profile: Profile) -> list[Finding]:
    """All findings above `LEAST_SHARE`, costliest first; those of one-off programs come last."""
    least = LEAST_SHARE * profile.total_ns
    costly = [finding for finding in _merge(_all(profile)) if finding.cost_ns > least]
    return sorted(costly, key=lambda finding: (finding.is_one_off, -finding.cost_ns))


def _all(profile: Profile) -> Iterator[Finding]:
    aside = one_off(profile)
    pairs = zip(profile.programs, profile.counts, strict=True)
    for number, (program, count) in enumerate(pairs):
        if program.error or not program.total_ns:
            continue
        for rule, (look, _) in RULES.items():
            cause = look(program, profile.machine)
            if cause is not None:
                yield Finding(
                    rule=rule,
                    program=program.name,
                    what=cause.what,
                    remedy=cause.remedy,
                    cost_ns=cause.ns * count,
                    kernel=cause.kernel,
                    source=cause.source,
                    is_one_off=number in aside,
                )


def _merge(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of one rule at one line with one remedy as one: that which costs most."""
    groups: dict[tuple[str, str, str, bool], list[Finding]] = {}
    for finding in findings:
        key = (finding.rule, finding.source, finding.remedy, finding.is_one_off)
        groups.setdefault(key, []).append(finding)
    return [_add_up(group) for group in groups.values()]


def _add_up(group: list[Finding]) -> Finding:
    first, *rest = sorted(group, key=lambda finding: -finding.cost_ns)
    others = dict.fromkeys(finding.program for finding in rest if finding.program != first.program)
    whole = sum(finding.cost_ns for finding in group)
    return replace(first, cost_ns=whole, others=tuple(others))
