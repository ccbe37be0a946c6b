"""What limits a workload on a machine, by its estimates: a table of rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from neuronjax.display import duration
from neuronjax.errors import shown_line
from neuronjax.machine.device_memory import MOST_INSTRUCTIONS
from neuronjax.planning import table
from neuronjax.planning.record import Estimate, Remark
from neuronjax.planning.sweep import Point

FAR_FROM_ROOFLINE = 10.0
"""A step that takes longer than this many times its roofline is a limit of the fit. Small models at
batch 1 take four to six times theirs on real chips, so an order of magnitude is no matter of size
alone."""
_MOST_LINES = 3
_MOST_KINDS = 5
MUCH_OF_A_STEP = 0.25
"""The share of a step from which on an engine that is slow by design counts as a limit."""


@dataclass(frozen=True)
class Limit:
    """What a workload meets on a machine, and what to change."""

    problem: str
    remedy: str
    forbids: bool = False
    """Whether it cannot run at all."""

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}" if self.remedy else self.problem


def limits_of(points: Sequence[Point]) -> Iterator[Limit]:
    """What limits a workload whose ways of splitting are `points`; those that forbid it first."""
    usable = [point for point in points if point.usable]
    if not usable:
        yield from _why_nothing_runs(points)
        return
    chosen = min(usable, key=lambda point: point.cost).estimate
    assert chosen is not None
    for rule in _RULES:
        yield from rule(chosen)


def _why_nothing_runs(points: Sequence[Point]) -> Iterator[Limit]:
    """Every way's error; of those that do not fit the memory, the one that needs least."""
    errors = dict.fromkeys(point.error for point in points if point.error)
    yield from (Limit(error, "", forbids=True) for error in errors)
    estimates = [point.estimate for point in points if point.estimate]
    if estimates:
        least = min(estimates, key=lambda estimate: estimate.memory_bytes)
        yield Limit(
            f"a core needs {table.size(least.memory_bytes)} but has "
            f"{table.size(least.capacity_bytes)} (mesh {_mesh(least)}): {_ledger(least)}",
            "; ".join(least.advice),
            forbids=True,
        )


def _ledger(estimate: Estimate) -> str:
    """What takes a core's memory, most first."""
    kinds = sorted(estimate.memory, key=lambda kind: -estimate.memory[kind])
    return ", ".join(f"{kind} {table.size(estimate.memory[kind])}" for kind in kinds[:_MOST_KINDS])


def _may_not_fit(estimate: Estimate) -> Iterator[Limit]:
    most, tensors = estimate.memory_range_bytes[1], estimate.tensor_bytes
    if most > estimate.capacity_bytes:
        yield Limit(
            f"a core's {table.size(estimate.capacity_bytes)} may not suffice: the runtime takes up "
            f"to {table.size(most - tensors)} beside {table.size(tensors)} of tensors",
            "load fewer programs beside each other, or use more cores",
        )


def _refusals(estimate: Estimate) -> Iterator[Limit]:
    """What the compiler says; the same of many lines is said once."""
    by_rule: dict[str, list[Remark]] = {}
    for remark in estimate.remarks:
        if remark.severity != "note":
            by_rule.setdefault(remark.label, []).append(remark)
    for remarks in by_rule.values():
        first = remarks[0]
        others = f" and {len(remarks) - 1} more" if len(remarks) > 1 else ""
        yield Limit(
            f"[{first.label}] {first.problem} ({first.where}{others})",
            first.remedy,
            forbids=first.severity == "error",
        )


def _instructions(estimate: Estimate) -> Iterator[Limit]:
    if estimate.instruction_count > MOST_INSTRUCTIONS:
        yield Limit(
            f"{estimate.instruction_count:,.0f} instructions, but the compiler takes at most "
            f"{MOST_INSTRUCTIONS:,}",
            "split the program over more cores, lower the batch, or compile blocks separately",
            forbids=True,
        )


def _left_to_host(estimate: Estimate) -> Iterator[Limit]:
    if estimate.busy_ns.get("host"):
        yield Limit(
            "the host computes what no engine can, with "
            f"{duration(estimate.busy_ns['host'])} of transfers per step",
            "neuronjax estimate lists these operations under Assumed",
        )


def _on_gpsimd(estimate: Estimate) -> Iterator[Limit]:
    share = estimate.busy_ns.get("gpsimd", 0.0) / estimate.step_ns
    if share > MUCH_OF_A_STEP:
        yield Limit(
            f"the GpSimd engine is busy for {share:.0%} of a step",
            "sorts, gathers by computed indices, integer division and random bits run there; see "
            "neuronjax profile for their lines",
        )


def _idle_axes(estimate: Estimate) -> Iterator[Limit]:
    yield from (Limit(problem, remedy) for problem, remedy in table.idle(estimate))


def _far_from_roofline(estimate: Estimate) -> Iterator[Limit]:
    ratio = (estimate.step_ns - estimate.launch_ns) / estimate.roofline_ns
    if ratio > FAR_FROM_ROOFLINE:
        yield Limit(
            f"a step takes {ratio:.1f} times as long as its arithmetic and its bytes need "
            f"({duration(estimate.roofline_ns)}); busiest: "
            f"{table.RESOURCES[estimate.bottleneck]}{_costliest_lines(estimate)}",
            _BUSIEST.get(
                estimate.bottleneck,
                "larger products per core help: a larger batch, or fewer cores",
            ),
        )


def _costliest_lines(estimate: Estimate) -> str:
    """The lines of the user's program that take most of a step."""
    times: defaultdict[str, float] = defaultdict(float)
    for kernel in estimate.kernels:
        if kernel.source:
            times[kernel.source] += kernel.time_ns
    costliest = sorted(times, key=lambda line: -times[line])[:_MOST_LINES]
    lines = [f"{shown_line(line)} ({times[line] / estimate.step_ns:.0%})" for line in costliest]
    return f"; costliest lines: {', '.join(lines)}" if lines else ""


_BUSIEST: Mapping[str, str] = {
    "collective": "fewer cores per replica, or more work between collectives (a larger batch)",
    "dma": "values go through HBM between kernels; see neuronjax profile for the costliest",
    "vector": "element-wise work outweighs products; a larger width helps, and fewer FP32 values",
    "scalar": "activation functions outweigh products; a larger width helps",
}

_RULES: tuple[Callable[[Estimate], Iterator[Limit]], ...] = (
    _refusals,
    _instructions,
    _may_not_fit,
    _left_to_host,
    _on_gpsimd,
    _idle_axes,
    _far_from_roofline,
)


def _mesh(estimate: Estimate) -> str:
    return ",".join(f"{axis}={size}" for axis, size in estimate.mesh.items())
