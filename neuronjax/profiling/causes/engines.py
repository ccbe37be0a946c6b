"""Causes that lie in what the compute engines do, or in what they wait for."""

from __future__ import annotations

from collections import Counter, defaultdict

from neuronjax.display import counted, duration, percent
from neuronjax.profiling.causes.cause import (
    TITLES,
    Cause,
    costliest,
    instruction,
    merged,
    place,
    saved,
)
from neuronjax.profiling.causes.memory import memory_bound
from neuronjax.profiling.records import Instructions, KernelProfile, MachineFacts, ProgramProfile
from neuronjax.profiling.spans import TENSOR, kind_of
from neuronjax.profiling.summary import ratio

_IDLE_SHARE = 0.3
_TRANSPOSE_SHARE = 0.1
_GPSIMD_SHARE = 0.05
_ELEMENTWISE_SHARE = 0.3
_WORTH_NAMING = 0.05
"""Share of the run from which an instruction is named as what costs."""

_ROUND = frozenset({"xor", "shift_left", "shift_right_logical", "add"})
"""Operations of a round of Threefry; no layer of a model shifts bits to and fro."""
_PHILOX = "multiply_high"
"""An operation of rbg's generator alone."""


def threefry(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """Kernels that draw random bits as Threefry does."""
    drawing = threefry_kernels(program)
    cost = sum(kernel.time_ns for kernel in drawing)
    share = percent(cost, program.total_ns)
    if cost <= _WORTH_NAMING * program.total_ns:
        return None
    worst = max(drawing, key=lambda kernel: kernel.time_ns)
    splits = any(_PHILOX in kernel.operations for kernel in program.kernels)
    return Cause(
        ns=min(cost, program.total_ns),
        what=f"the Threefry generator takes {duration(cost)} ({share} of the run): integer "
        f"arithmetic on {TITLES[worst.critical]}.",
        remedy=_SPLIT if splits else _DRAW,
        kernel=worst.name,
        source=worst.source,
    )


_DRAW = (
    'Draw with rbg, which takes about half as long: jax.config.update("jax_default_prng_impl", '
    '"rbg").'
)
_SPLIT = (
    "The numbers are rbg's, but its keys are split and folded with Threefry: split the key once, "
    "outside the loop (jax.random.split(key, steps)), or use the generator unsafe_rbg."
)


def threefry_kernels(program: ProgramProfile) -> list[KernelProfile]:
    """The kernels of Threefry's rounds, and at their lines those of counters that become bits."""
    lines = {kernel.source for kernel in program.kernels if _is_threefry(kernel)}
    return [
        kernel
        for kernel in program.kernels
        if _is_threefry(kernel) or (kernel.source in lines and kernel.critical == "gpsimd")
    ]


def _is_threefry(kernel: KernelProfile) -> bool:
    return set(kernel.operations) >= _ROUND and _PHILOX not in kernel.operations


def gpsimd(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """Kernels that GpSimd limits, but for those that `threefry` finds."""
    drawing = threefry_kernels(program)
    bound = [
        (saved(kernel), kernel)
        for kernel in program.kernels
        if kernel.critical == "gpsimd" and kernel not in drawing
    ]
    cost = sum(ns for ns, _ in bound)
    lines = {kernel.source for kernel in drawing}
    rows = merged(
        row for row in program.instructions if row.engine == "gpsimd" and row.source not in lines
    )
    if cost <= _GPSIMD_SHARE * program.total_ns or not rows:
        return None
    worst = costliest(bound)
    assert worst is not None
    return Cause(
        ns=min(cost, program.total_ns),
        what=f"GpSimd limits {counted(len(bound), 'kernel')}; most of it: {_taking(rows[0])}.",
        remedy=_gpsimd_remedy(rows[0]),
        kernel=worst.name,
        source=rows[0].source,
    )


def _gpsimd_remedy(row: Instructions) -> str:
    if _PHILOX in row.operations:
        return (
            "These are random numbers: draw fewer, or narrower ones (jax.random.bits of uint8 for "
            "a mask), or once for several steps."
        )
    if row.opcode == "custom_op" and row.dtype.startswith(("int", "uint", "bool")):
        return (
            "No other engine computes with integers exactly: use float32 where whole numbers stay "
            "below 2^24."
        )
    if row.opcode == "custom_op":
        return (
            f"No other engine computes {row.operator} for every number: compute it once and pass "
            "it as an argument (a table of positions), or use a function that Scalar has (exp, "
            "tanh, gelu, silu)."
        )
    return _GPSIMD.get(row.opcode, _GPSIMD_OTHERS)


_GPSIMD = {
    "iota": "Compute the numbers once and pass them as an argument.",
    "affine_select": "Compute the mask once and pass it as an argument, or add it to the scores.",
    "tensor_partition_reduce": "This sums along the first dimension of a tile; a product with a "
    "vector of ones does it on the Tensor engine.",
    "local_gather": "With few rows, a product with jax.nn.one_hot of the indices runs on the "
    "Tensor engine.",
    "nc_n_gather": "With few rows, a product with jax.nn.one_hot of the indices runs on the "
    "Tensor engine.",
    "topk": "Ask for fewer elements, or for the largest alone (max, argmax), which Vector finds.",
}
_GPSIMD_OTHERS = (
    "GpSimd runs at an eighth of the rate of the other engines: do it once outside the loop, or "
    "express it as a product or a comparison."
)


def elementwise(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """Kernels that Vector or Scalar limits."""
    lanes = ("vector", "scalar")
    bound = [
        (saved(kernel), kernel)
        for kernel in program.kernels
        if kernel.critical in lanes and not set(kernel.operations) >= _ROUND
    ]
    cost = sum(ns for ns, _ in bound)
    rows = merged(row for row in program.instructions if row.engine in lanes)
    if cost <= _ELEMENTWISE_SHARE * program.total_ns or not rows or not rows[0].critical_ns:
        return None
    worst = costliest(bound)
    assert worst is not None
    share = percent(sum(kernel.time_ns for _, kernel in bound), program.total_ns)
    return Cause(
        ns=min(cost, program.total_ns),
        what=f"Vector or Scalar limits {counted(len(bound), 'kernel')} ({share} of the run); most "
        f"of it: {_taking(rows[0])}.",
        remedy=_elementwise_remedy(rows[0]),
        kernel=worst.name,
        source=rows[0].source,
    )


def _taking(row: Instructions) -> str:
    return f"{row.number:,} x {instruction(row)}{place(row)}, {duration(row.critical_ns)} in all"


def _elementwise_remedy(row: Instructions) -> str:
    """What helps depends on the engine, the type and the operation."""
    if row.opcode == "reciprocal":
        if "sqrt" in row.operations:
            return (
                "These are divisions by a root: multiply by jax.lax.rsqrt(...) instead, which "
                "Scalar computes in one pass; a reciprocal takes Vector eight."
            )
        return (
            "These are divisions, each eight passes of Vector: divide once what many elements "
            "share (the sum of a row), or multiply by a constant."
        )
    if "optax" in row.scope:
        return (
            "This is the optimizer, whose time falls with the parameters of a core: split its "
            "state over the axis of the batch, or update less often (optax.MultiSteps)."
        )
    if row.opcode.endswith("reduce"):
        return (
            "Sums and maxima go through every element in float32: take them once (a mean and a "
            "variance from the same pass), and before anything is widened or broadcast."
        )
    if row.engine == "scalar":
        return (
            "Scalar takes as long for every type: apply the function to fewer elements, before a "
            "broadcast or after a slice, or use a function that Vector has (relu, square)."
        )
    if row.dtype == "float32":
        return (
            "In bfloat16 Vector goes through twice as many elements, and four times as many of a "
            "copy or an operation with a constant."
        )
    if not row.dtype:
        return (
            "This brings results of products out of PSUM, which no type makes faster: make fewer "
            "of them (products that contract more), or keep elements with a shorter way."
        )
    return "Leave out steps: casts, broadcasts that are stored, and sums that are used once."


def transposes(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """Transposes that take the Tensor engine's time."""
    rows = [
        row
        for row in program.instructions
        if row.engine == TENSOR and (row.opcode == "tensor_transpose" or row.operator)
    ]
    cost = sum(row.core_ns for row in rows)
    busy = program.busy_ns.get(TENSOR, 0.0)
    if cost <= _TRANSPOSE_SHARE * busy:
        return None
    count = sum(row.number for row in rows)
    by_line: Counter[str] = Counter()
    for row in rows:
        by_line[row.source] += round(row.time_ns)
    wide = ratio(
        program.work.get("adjusted_transpose_flops", 0), program.work.get("transpose_flops", 0)
    )
    narrower = " In bfloat16 each takes a quarter of the time." if wide > 2 else ""
    return Cause(
        ns=cost,
        what=f"{count:,} transposes take {duration(cost)} of the Tensor engine, "
        f"{percent(cost, busy)} of its work.",
        remedy="A product needs both operands with the dimension that is summed first: let "
        "einsum make and read activations as (features, tokens) where that avoids turning them."
        + narrower,
        source=max(by_line, key=by_line.__getitem__),
    )


def tensor_idle(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """Time for which the Tensor engine idles in kernels that use it, and what it waits for."""
    idle: list[tuple[float, KernelProfile]] = []
    waits: defaultdict[str, float] = defaultdict(float)
    for kernel in program.kernels:
        busy = kernel.busy_ns.get(TENSOR, 0.0)
        if not busy or kernel.critical == "gpsimd":
            continue
        still = max(0.0, kernel.added_ns - busy) * kernel.runs
        idle.append((still, kernel))
        before = _waited_for(kernel)
        for name, ns in before.items():
            waits[name] += still * ns / sum(before.values())
    cost = sum(ns for ns, _ in idle)
    worst = costliest(idle)
    if cost < _IDLE_SHARE * program.total_ns or worst is None or not waits:
        return None
    if not program.model_flops or memory_bound(program, machine):
        return None  # the latter is why, and says more
    causes = sorted(waits.items(), key=lambda pair: -pair[1])[:2]
    words = " and ".join(
        f"{name.partition(' ')[2]} on {TITLES[name.partition(' ')[0]]} "
        f"({percent(ns, sum(waits.values()))})"
        for name, ns in causes
    )
    return Cause(
        ns=cost,
        what=f"in kernels with products, the Tensor engine is idle for "
        f"{percent(cost, program.total_ns)} of the run; it waits for {words}.",
        remedy=_IDLE.get(causes[0][0].partition(" ")[0], _IDLE_OTHERS),
        kernel=worst.name,
        source=worst.source,
    )


def _waited_for(kernel: KernelProfile) -> Counter[str]:
    """Idle time of the Tensor engine by what released it: ``dma dma_copy``."""
    waits: Counter[str] = Counter()
    free = 0.0
    for span in kernel.spans:
        if span.lane != TENSOR:
            continue
        if span.start > free and span.after >= 0:
            cause = kernel.spans[span.after]
            waits[f"{kind_of(cause.lane)} {cause.mnemonic}"] += round(span.start - free)
        free = max(free, span.end)
    return +waits


_IDLE = {
    "dma": "Let more be computed with what is loaded: a larger batch per core, or larger layers; "
    "operands in bfloat16 are half as many bytes.",
    "collective": "Start the collective earlier: gather the weights of the next layer while this "
    "one computes, or use fewer cores on that axis of the mesh.",
}
_IDLE_OTHERS = (
    "The work between the products takes longer than they do: make it less (fewer casts, "
    "normalisations and masks between them) or the products larger."
)
