"""What is slow in a recording, why, and what to do about it: one rule per cause.

The rules are those of Neuron Explorer's recommendations (MFU below one half, transposes above a
tenth, spill reloads above a quarter of reads, small DMAs) and some that need a simulation (what an
engine waited for, collectives that no computation hides).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from neuronjax.profiling.phases import one_off
from neuronjax.profiling.records import KernelProfile, MachineFacts, Profile, ProgramProfile
from neuronjax.profiling.summary import percentages, ratio

LEAST_SHARE = 0.02
"""Findings that cost a smaller share of the recording's time are not reported."""

SMALL_DMA_BYTES = 256 << 10
"""Smaller transfers are mostly start-up (Neuron's advice: 2 KiB or more per partition)."""

_IDLE_SHARE = 0.3
_TRANSPOSE_SHARE = 0.1
_SPILL_SHARE = 0.25
_EXPOSED_SHARE = 0.05
_GPSIMD_SHARE = 0.05
_LAUNCH_SHARE = 0.2
_SLOW_DMA = 0.6
_ELEMENTWISE = ("vector", "scalar")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause of lost time. `cost_ns` is the most that removing it saves, over all runs.

    `is_one_off` says that the program only prepares others.
    """

    rule: str
    program: str
    what: str
    remedy: str
    cost_ns: float
    kernel: str = ""
    source: str = ""
    is_one_off: bool = False


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a rule found in one run of a program: `what` is a sentence, `kernel` the worst one."""

    ns: float
    what: str
    kernel: KernelProfile | None = None


_Rule = Callable[[ProgramProfile, MachineFacts], _Cost | None]


def _percent(part: float, whole: float) -> str:
    return f"{100 * ratio(part, whole):.0f} %"


def _kernels(count: int, share: str = "") -> str:
    """The subject and verb of a finding about some kernels."""
    of_run = f" ({share} of the run)" if share else ""
    return f"1 kernel{of_run} is" if count == 1 else f"{count} kernels{of_run} are"


def _costliest(kernels: list[tuple[float, KernelProfile]]) -> KernelProfile | None:
    return max(kernels, key=lambda pair: pair[0])[1] if kernels else None


def _small_dmas(program: ProgramProfile, machine: MachineFacts) -> _Cost | None:
    """Inefficient transfers, in kernels that wait for them."""
    waiting = []
    count = nbytes = taken = ideal = 0.0
    for kernel in program.kernels:
        best = kernel.work.get("dma_ideal_ns", 0) * kernel.runs / machine.lnc
        if kernel.critical != "dma" or best >= _SLOW_DMA * kernel.time_ns:
            continue
        waiting.append((kernel.time_ns - best, kernel))
        count += kernel.work.get("dma_transfer_count", 0)
        nbytes += kernel.work.get("dma_transfer_total_bytes", 0)
        taken, ideal = taken + kernel.time_ns, ideal + best
    if not waiting:
        return None
    size = ratio(nbytes, count)
    why = ", mostly start-up" if size < SMALL_DMA_BYTES else ""
    return _Cost(
        taken - ideal,
        f"{_kernels(len(waiting))} bound by DMA at {_percent(ideal, taken)} of its rate: transfers "
        f"are {size / 1024:.1f} KiB on average{why}.",
        _costliest(waiting),
    )


def _tensor_waits(program: ProgramProfile, machine: MachineFacts) -> _Cost | None:
    """Time for which the Tensor engine idles in kernels that use it, and what it waits for."""
    waits: dict[str, float] = defaultdict(float)
    idle_kernels = []
    for kernel in program.kernels:
        busy = kernel.busy_ns.get("tensor", 0.0)
        if not busy:
            continue
        idle = max(0.0, kernel.duration_ns - busy) * kernel.runs
        idle_kernels.append((idle, kernel))
        seen = sum(kernel.tensor_waits_ns.values())
        for cause, time in kernel.tensor_waits_ns.items():
            waits[cause] += idle * ratio(time, seen)
    idle = sum(time for time, _ in idle_kernels)
    if not idle_kernels or idle < _IDLE_SHARE * program.total_ns:
        return None
    causes = ", ".join(
        f"{_CAUSES.get(name, name)} ({_percent(time, sum(waits.values()))})"
        for name, time in sorted(waits.items(), key=lambda pair: -pair[1])[:2]
    )
    return _Cost(
        idle,
        f"within kernels that use it, the Tensor engine is idle for "
        f"{_percent(idle, program.total_ns)} of the run, waiting for {causes or 'their end'}.",
        _costliest(idle_kernels),
    )


_CAUSES = {
    "dma": "DMA transfers", "vector": "the Vector engine", "scalar": "the Scalar engine",
    "gpsimd": "the GpSimd engine", "sync": "the Sync engine", "collective": "collectives",
}  # fmt: skip


def _transposes(program: ProgramProfile, machine: MachineFacts) -> _Cost | None:
    hardware = program.work.get("adjusted_hardware_flops", 0)
    transposes = program.work.get("adjusted_transpose_flops", 0)
    if ratio(transposes, hardware) <= _TRANSPOSE_SHARE:
        return None
    worst = _costliest([
        (kernel.work.get("adjusted_transpose_flops", 0) * kernel.runs, kernel)
        for kernel in program.kernels
        if kernel.work.get("transpose_flops")
    ])  # fmt: skip
    busy = program.busy_ns.get("tensor", 0.0)
    share = _percent(transposes, hardware)
    return _Cost(
        busy * ratio(transposes, hardware),
        f"{share} of the Tensor engine's work is transposes.",
        worst,
    )


def _spills(program: ProgramProfile, machine: MachineFacts) -> _Cost | None:
    reads = program.work.get("hbm_read_bytes", 0)
    reloaded = program.work.get("spill_reload_bytes", 0)
    saved = program.work.get("spill_save_bytes", 0)
    if ratio(reloaded, reads) <= _SPILL_SHARE:
        return None
    worst = _costliest([
        (kernel.work.get("spill_reload_bytes", 0) * kernel.runs, kernel)
        for kernel in program.kernels
    ])  # fmt: skip
    return _Cost(
        (reloaded + saved) / machine.max_hbm_bandwidth * 1e9,
        f"{_percent(reloaded, reads)} of what is read from HBM is intermediate values that did not "
        f"stay in SBUF between kernels ({(reloaded + saved) / (1 << 20):.1f} MiB per run).",
        worst,
    )


def _exposed_collectives(program: ProgramProfile, machine: MachineFacts) -> _Cost | None:
    """Time of collectives that no computation hides."""
    alone = [kernel for kernel in program.kernels if kernel.critical == "collective"]
    computing = sorted(
        (kernel.start_ns, kernel.end_ns)
        for kernel in program.kernels
        if kernel.critical != "collective"
    )
    uncovered = []
    for kernel in alone:
        hidden = sum(
            max(0.0, min(kernel.end_ns, end) - max(kernel.start_ns, start))
            for start, end in computing
        )
        span = max(kernel.end_ns - kernel.start_ns, 1e-9)
        uncovered.append((kernel.time_ns * max(0.0, 1 - hidden / span), kernel))
    exposed = sum(time for time, _ in uncovered)
    if exposed <= _EXPOSED_SHARE * program.total_ns:
        return None
    whole = sum(kernel.time_ns for kernel in alone)
    return _Cost(
        exposed,
        f"collectives take {_percent(whole, program.total_ns)} of the run, and "
        f"{_percent(exposed, whole)} of that is not hidden by any kernel.",
        _costliest(uncovered),
    )


def _gpsimd(program: ProgramProfile, machine: MachineFacts) -> _Cost | None:
    bound = [(kernel.time_ns, kernel) for kernel in program.kernels if kernel.critical == "gpsimd"]
    time = min(program.total_ns, sum(time_ns for time_ns, _ in bound))
    if time <= _GPSIMD_SHARE * program.total_ns:
        return None
    share = _percent(time, program.total_ns)
    return _Cost(time, f"{_kernels(len(bound), share)} bound by GpSimd.", _costliest(bound))


def _elementwise(program: ProgramProfile, machine: MachineFacts) -> _Cost | None:
    bound = [
        (kernel.time_ns, kernel) for kernel in program.kernels if kernel.critical in _ELEMENTWISE
    ]
    time = min(program.total_ns, sum(time_ns for time_ns, _ in bound))
    if time <= _IDLE_SHARE * program.total_ns:
        return None
    share = _percent(time, program.total_ns)
    return _Cost(
        time,
        f"{_kernels(len(bound), share)} bound by the Vector or Scalar engine.",
        _costliest(bound),
    )


def _idle(program: ProgramProfile, machine: MachineFacts) -> _Cost | None:
    """Time in which no kernel runs, such as that of loops whose only kernel waits for itself."""
    covered = sum(kernel.time_ns for kernel in program.kernels)
    still = program.total_ns - program.launch_ns - covered
    if still <= _EXPOSED_SHARE * program.total_ns:
        return None
    gaps = [
        (kernel.end_ns - kernel.start_ns - kernel.time_ns, kernel) for kernel in program.kernels
    ]
    share = _percent(still, program.total_ns)
    return _Cost(still, f"no kernel runs for {share} of the time.", _costliest(gaps))


def _launch(program: ProgramProfile, machine: MachineFacts) -> _Cost | None:
    if program.launch_ns <= _LAUNCH_SHARE * program.total_ns:
        return None
    share = _percent(program.launch_ns, program.total_ns)
    return _Cost(program.launch_ns, f"{share} of the time goes to launching the program.")


def _memory_bound(program: ProgramProfile, machine: MachineFacts) -> _Cost | None:
    shares = percentages(program, machine)
    if not program.model_flops or shares["mfu_max_achievable_estimated_percent"] >= 0.5:
        return None
    if shares["mbu_estimated_percent"] < 0.5:
        return None
    return _Cost(
        program.total_ns * (1 - shares["mfu_estimated_percent"]) * 0.5,
        f"HBM is busy ({100 * shares['mbu_estimated_percent']:.0f} % of its bandwidth), and its "
        "traffic allows an MFU of at most "
        f"{100 * shares['mfu_max_achievable_estimated_percent']:.0f} %.",
    )


RULES: dict[str, tuple[_Rule, str]] = {
    "small-dma": (
        _small_dmas,
        "Make the last dimension longer or contiguous, batch small tensors together, or keep them "
        "in SBUF; below 2 KiB per partition a transfer is mostly start-up.",
    ),
    "tensor-idle": (
        _tensor_waits,
        "Use larger products (batch, sequence or hidden size per core), bfloat16 operands, or "
        "fewer cores on the model axis; fuse what runs between products.",
    ),
    "transposes": (
        _transposes,
        "Store the operand with its contraction dimension first, or transpose weights once before "
        "training.",
    ),
    "spills": (
        _spills,
        "Lower the batch or sequence length per core, compute in bfloat16, or recompute with "
        "jax.checkpoint so that values live for a shorter time.",
    ),
    "exposed-collectives": (
        _exposed_collectives,
        "Use a smaller model axis, put it on the closest cores (neuronjax.make_mesh), or issue "
        "collectives earlier (gather the next layer's weights while this one computes).",
    ),
    "gpsimd-bound": (
        _gpsimd,
        "GpSimd runs at an eighth of the other engines' rate: avoid sort, cumsum, iota and "
        "gathers along partitions in hot loops, or express them as products or comparisons.",
    ),
    "elementwise-bound": (
        _elementwise,
        "Compute in bfloat16 where accuracy allows (the Vector engine has faster modes for it), "
        "and avoid materialised casts, broadcasts and reductions to a scalar.",
    ),
    "idle": (
        _idle,
        "Loops with few instructions per iteration wait for their control flow: unroll them "
        "(scan's unroll), or use vmap instead of a loop.",
    ),
    "launch": (
        _launch,
        "Do more per program: jit the whole step, or scan over several steps.",
    ),
    "memory-bound": (
        _memory_bound,
        "Raise the batch per core so that each weight read does more work, store weights in "
        "bfloat16 or FP8, or fuse operations.",
    ),
}  # fmt: skip
"""Name of a rule -> its function and the remedy."""


def findings(profile: Profile) -> list[Finding]:
    """All findings above `LEAST_SHARE`, costliest first; those of one-off programs come last."""
    results: list[Finding] = []
    least = LEAST_SHARE * profile.total_ns
    aside = one_off(profile)
    pairs = zip(profile.programs, profile.counts, strict=True)
    for number, (program, count) in enumerate(pairs):
        if program.error or not program.total_ns:
            continue
        for rule, (look, remedy) in RULES.items():
            cost = look(program, profile.machine)
            if cost is not None and cost.ns * count > least:
                results.append(
                    Finding(
                        rule=rule,
                        program=program.name,
                        what=cost.what,
                        remedy=remedy,
                        cost_ns=cost.ns * count,
                        kernel=cost.kernel.name if cost.kernel else "",
                        source=cost.kernel.source if cost.kernel else "",
                        is_one_off=number in aside,
                    )
                )
    return sorted(results, key=lambda finding: (finding.is_one_off, -finding.cost_ns))
