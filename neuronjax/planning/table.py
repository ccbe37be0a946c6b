"""An estimate as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from neuronjax.display import Table, counted, digits, duration, duration_within, rounded
from neuronjax.errors import shown_line
from neuronjax.machine.device_memory import MOST_INSTRUCTIONS

Estimate = Any
"""`record.Estimate`, which knows these tables."""

GIB = 1 << 30
RESOURCES: Mapping[str, str] = {
    "tensor": "Tensor engine",
    "vector": "Vector engine",
    "scalar": "Scalar engine",
    "gpsimd": "GpSimd engine",
    "sync": "Sync engine",
    "dma": "DMA",
    "collective": "collectives",
    "host": "host",
}
"""Names of `Estimate.busy_ns` -> names for people."""

_KERNELS = 8


def parts(estimate: Estimate) -> Iterator[str | Table]:
    """The whole of it, from top to bottom."""
    yield _heading(estimate)
    yield Table([*_summary(estimate)])
    if estimate.idle_axes:
        yield "Unused\n" + _list(f"{problem}; {remedy}" for problem, remedy in idle(estimate))
    yield Table([*_busy(estimate)], title="Busy, of the step (they overlap)")
    yield Table([*_memory(estimate)], title="HBM of a core")
    if estimate.traffic:
        yield traffic(estimate)
    if not estimate.fits:
        yield "It does not fit. What to change:\n" + _list(estimate.advice)
    yield Table([*_kernels(estimate)], title="Costliest kernels")
    yield from assumptions([estimate])


def assumptions(estimates: Iterable[Estimate]) -> Iterator[str]:
    """What was extrapolated, assumed, or left to the host, each once; nothing if nothing was."""
    lines = dict.fromkeys(line for estimate in estimates for line in estimate.assumed)
    if lines:
        yield "Assumed\n" + _list(lines)


def traffic(estimate: Estimate) -> Table:
    """What a core sends along each axis of the mesh."""
    return Table([*_traffic(estimate)], title="Sent by a core, by mesh axis")


def bases(estimates: Iterable[Estimate]) -> str:
    """What ranges in a table mean, and what they rest on, each basis once."""
    names = dict.fromkeys(estimate.basis for estimate in estimates)
    return "Four of five measurements of a step would lie in its range, by:\n" + _list(names)


def occupancy(estimate: Estimate) -> str:
    """The share of a core's HBM that is taken, and its range."""
    low, high = (nbytes / estimate.capacity_bytes for nbytes in estimate.memory_range_bytes)
    share = estimate.memory_bytes / estimate.capacity_bytes
    return f"{share:.0%} ({100 * low:.0f} to {high:.0%})"


def idle(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """What it means, for each axis of the mesh that is not used, and what to do."""
    for axis in estimate.idle_axes:
        yield (
            f"mesh axis {axis}={estimate.mesh[axis]} splits no argument or result: the cores "
            "along it do the same work",
            "split something by it, or leave it out",
        )


def _heading(estimate: Estimate) -> str:
    mesh = ",".join(f"{axis}={size}" for axis, size in estimate.mesh.items())
    several = f" x {estimate.instances}" if estimate.instances > 1 else ""
    return (
        f"{estimate.name} on {estimate.target}{several} (LNC {estimate.lnc}), "
        f"{counted(estimate.ranks, 'core')}, mesh {mesh}"
    )


def _summary(estimate: Estimate) -> Iterable[tuple[str, ...]]:
    low, high = estimate.range_ns
    time, times = duration_within(estimate.step_ns, low, high)
    yield "step time", time, f"({times})"
    launch = estimate.launch_ns - estimate.host_call_ns
    yield "  on device", duration(estimate.device_ns), f"({duration(launch)} of it the launch)"
    if estimate.host_call_ns:
        yield "  host's call", duration(estimate.host_call_ns)
    shown = digits(low, high)
    for name, rate, rates in (
        ("tokens/s", estimate.tokens_per_second, estimate.tokens_per_second_range),
        ("samples/s", estimate.samples_per_second, estimate.samples_per_second_range),
    ):
        if rate is not None and rates is not None:
            slowest, fastest = (rounded(bound, shown) for bound in rates)
            yield name, rounded(rate, shown + 1), f"({slowest} to {fastest})"
    yield "range", "80 %", f"({estimate.basis})"
    roof = estimate.mfu_max_achievable_estimated_percent
    yield (
        "MFU",
        f"{rounded(estimate.mfu_estimated_percent, shown)} %",
        f"(memory allows {rounded(roof, shown)} %)",
    )
    yield "HFU", f"{rounded(estimate.hfu_estimated_percent, shown)} %"
    yield "MBU", f"{rounded(estimate.mbu_estimated_percent, shown)} %"
    yield "bottleneck", RESOURCES[estimate.bottleneck]
    count = estimate.instruction_count
    note = f"{count / MOST_INSTRUCTIONS:.0%} of the compiler's limit of 5 M"
    yield "instructions", f"{count:,.0f}", f"({note})"
    yield "spilled", size(estimate.spilled_bytes), "(between kernels, through HBM)"
    if estimate.price is not None and estimate.usd_per_step is not None:
        origin = estimate.price.origin
        yield "price", f"${estimate.price.usd_per_hour:.2f}/h", f"per instance ({origin})"
        yield "a step", f"${rounded(estimate.usd_per_step, shown)}"
        if estimate.usd_per_million_tokens is not None:
            yield "1 M tokens", f"${rounded(estimate.usd_per_million_tokens, shown)}"


def _busy(estimate: Estimate) -> Iterable[tuple[str, ...]]:
    for name, time in sorted(estimate.busy_ns.items(), key=lambda item: -item[1]):
        if time:
            yield RESOURCES[name], duration(time), f"{100 * time / estimate.step_ns:5.1f} %"


def _memory(estimate: Estimate) -> Iterable[tuple[str, ...]]:
    for kind, nbytes in estimate.memory.items():
        bounds = estimate.memory_ranges.get(kind)
        yield kind, size(nbytes), *([_bounds(bounds)] if bounds else [])
    shown = f"of {size(estimate.capacity_bytes)} {_bounds(estimate.memory_range_bytes)}"
    yield "total", size(estimate.memory_bytes), shown
    word = "headroom" if estimate.fits else "missing"
    yield word, size(abs(estimate.headroom_bytes))


def _bounds(bounds: tuple[int, int]) -> str:
    return f"({size(bounds[0])} to {size(bounds[1])})"


def _traffic(estimate: Estimate) -> Iterable[tuple[str, ...]]:
    for row in estimate.traffic:
        sent = size(row.nbytes) if row.nbytes else "nothing"
        yield row.axes, f"{row.cores} cores", sent, row.links


def _kernels(estimate: Estimate) -> Iterable[tuple[str, ...]]:
    for kernel in estimate.kernels[:_KERNELS]:
        share = f"{100 * kernel.time_ns / estimate.step_ns:5.1f} %"
        names = " ".join(kernel.operations[:4] or ["copy"]) + (
            " ..." if len(kernel.operations) > 4 else ""
        )
        yield (
            share,
            duration(kernel.time_ns),
            f"{kernel.runs:,.0f} x",
            shown_line(kernel.source) or "?",
            names,
        )


def size(nbytes: float) -> str:
    """Bytes with a fitting unit."""
    if nbytes < 1024:
        return f"{nbytes:,.0f} B"
    if nbytes >= 100 * GIB:
        return f"{nbytes / GIB:,.0f} GiB"
    if nbytes >= GIB / 10:
        return f"{nbytes / GIB:.2f} GiB"
    if nbytes >= (1 << 20) / 10:
        return f"{nbytes / (1 << 20):.2f} MiB"
    return f"{nbytes / 1024:.1f} KiB"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)
