"""Causes that lie in memory and in the way to it."""

from __future__ import annotations

from neuronjax.display import counted, duration, nbytes, percent
from neuronjax.profiling.causes.cause import Cause, costliest, line, merged, place, saved
from neuronjax.profiling.records import KernelProfile, MachineFacts, ProgramProfile
from neuronjax.profiling.summary import percentages, ratio

_SPILL_SHARE = 0.25
_SLOW_DMA = 0.6
_HALF = 0.5


def slow_transfers(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """Kernels that wait for transfers which do not reach the rate of the DMA engines."""
    waiting: list[tuple[float, KernelProfile]] = []
    taken = ideal = work = 0.0
    for kernel in program.kernels:
        best = kernel.work.get("dma_ideal_ns", 0) * kernel.runs / machine.lnc
        if kernel.critical != "dma" or best >= _SLOW_DMA * kernel.time_ns:
            continue
        waiting.append((min(kernel.time_ns - best, saved(kernel)), kernel))
        taken, ideal = taken + kernel.time_ns, ideal + best
        work += kernel.work.get("dma_work_ns", 0) * kernel.runs / machine.lnc
    rows = merged(row for row in program.instructions if row.engine == "dma")
    worst = costliest(waiting)
    if worst is None or not rows or not rows[0].number:
        return None
    mean = ratio(rows[0].nbytes, rows[0].number)
    return Cause(
        ns=sum(ns for ns, _ in waiting),
        what=f"DMA limits {counted(len(waiting), 'kernel')}, at {percent(ideal, taken)} of its "
        f"rate; most of it: {rows[0].number:,} x {rows[0].opcode} of {nbytes(mean)}"
        f"{place(rows[0])}.",
        remedy=_transfer_remedy(ratio(ideal, work)),
        kernel=worst.name,
        source=rows[0].source,
    )


def _transfer_remedy(efficiency: float) -> str:
    """`efficiency` is the part of the DMA engines' time in which they move data at full rate."""
    if efficiency < _HALF:
        return (
            "The transfers are made of short rows: make the last dimension longer or contiguous "
            "(512 bytes and more), and put small tensors together."
        )
    return (
        "The transfers themselves are long enough, but each kernel waits for its first and its "
        "last: give it more to do (a larger batch or sequence per core)."
    )


def spills(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """Values that are written to HBM by one kernel and read by another."""
    reads = program.work.get("hbm_read_bytes", 0)
    reloaded = program.work.get("spill_reload_bytes", 0)
    handed = reloaded + program.work.get("spill_save_bytes", 0)
    if ratio(reloaded, reads) <= _SPILL_SHARE:
        return None
    waiting = [
        (kernel.work.get("spill_reload_bytes", 0) * kernel.runs, kernel)
        for kernel in program.kernels
        if kernel.critical == "dma"
    ]
    worst = costliest(waiting)
    if worst is None:
        return None
    rate = machine.max_hbm_bandwidth
    largest = max(
        (tensor for tensor in program.held if (tensor.memory, tensor.kind) == ("hbm", "scratch")),
        key=lambda tensor: tensor.nbytes,
        default=None,
    )
    named = ""
    if largest is not None:
        made = program.kernels[largest.first].source
        named = f", the largest a {largest.dtype} of {nbytes(largest.nbytes)}"
        named += f" from {line(made)}" if made else ""
    return Cause(
        ns=min(handed / rate * 1e9, sum(saved(kernel) for _, kernel in waiting)),
        what=f"kernels hand {nbytes(handed)} of intermediate values to each other through HBM, "
        f"{percent(reloaded, reads)} of all that is read{named}.",
        remedy=_spill_remedy(largest.dtype if largest is not None else ""),
        kernel=worst.name,
        source=worst.source,
    )


def _spill_remedy(dtype: str) -> str:
    blocks = "smaller blocks, which stay in SBUF: fewer rows per core, or jax.lax.map over them"
    if dtype.startswith("float32"):
        return f"Compute in bfloat16, which halves these values, or on {blocks}."
    return f"Compute on {blocks}."


def memory_bound(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """HBM is busy, and its traffic allows no better use of the Tensor engine."""
    shares = percentages(program, machine)
    most = shares["mfu_max_achievable_estimated_percent"]
    busy = shares["mbu_estimated_percent"]
    if not program.model_flops or most >= _HALF or busy < _HALF:
        return None
    reads = program.work.get("input_queue_bytes", 0) + program.work.get("weight_queue_bytes", 0)
    traffic = program.work.get("hbm_read_bytes", 0) + program.work.get("hbm_write_bytes", 0)
    computing = program.model_flops / machine.max_flops * 1e9
    of_arguments = ratio(reads, traffic) > _HALF
    worst = costliest((_traffic(kernel), kernel) for kernel in program.kernels)
    return Cause(
        ns=max(0.0, traffic / machine.max_hbm_bandwidth * 1e9 - computing),
        what=f"{nbytes(traffic)} of HBM traffic take {percent(busy, 1)} of its bandwidth; "
        f"{percent(reads, traffic)} of it is reading arguments and constants. The products alone "
        f"would take {duration(computing)}.",
        remedy="Use each weight for more: a larger batch per core; weights in bfloat16 or FP8 are "
        "fewer bytes."
        if of_arguments
        else "Keep intermediate values fewer or narrower: bfloat16, and fewer rows per core.",
        kernel=worst.name if worst else "",
        source=worst.source if worst else "",
    )


def _traffic(kernel: KernelProfile) -> float:
    work = kernel.work
    return (work.get("hbm_read_bytes", 0) + work.get("hbm_write_bytes", 0)) * kernel.runs
