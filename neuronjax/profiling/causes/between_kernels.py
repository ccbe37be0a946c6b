"""Causes that lie between kernels: collectives, loops, and the launch of a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from neuronjax.display import counted, duration, nbytes, percent
from neuronjax.machine.axes import axes_of
from neuronjax.profiling.causes.cause import Cause, costliest
from neuronjax.profiling.causes.engines import threefry_kernels
from neuronjax.profiling.records import Collective, KernelProfile, MachineFacts, ProgramProfile
from neuronjax.profiling.summary import ratio

_EXPOSED_SHARE = 0.05
_LAUNCH_SHARE = 0.2
_WAITING_SHARE = 0.3
_HALF = 0.5
_IN_A_ROW = 3
"""Collectives of one kind, one right after the other, that are worth combining."""

_COMPUTING = ("tensor", "vector", "scalar", "gpsimd")

_CALLS = {
    "all_reduce": "jax.lax.psum", "all_gather": "jax.lax.all_gather",
    "reduce_scatter": "jax.lax.psum_scatter", "all_to_all": "jax.lax.all_to_all",
    "collective_permute": "jax.lax.ppermute",
}  # fmt: skip


def small_collectives(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """Collectives of one kind that follow each other, and for the most part start up."""
    rows = [row for row in _in_a_row(program) if len(row) >= _IN_A_ROW and _is_latency(row)]
    if not rows:
        return None
    first = max(rows, key=_latency)[0]
    rows = [row for row in rows if _kind(row[0]) == _kind(first)]
    cost = sum(_latency(row) * (len(row) - 1) / len(row) for row in rows)
    count, taken = sum(map(len, rows)), sum(map(_time, rows))
    mean = sum(collective.input_size for row in rows for collective in row) / count
    kernel = _kernel_of(program, first)
    return Cause(
        ns=cost,
        what=f"{counted(count, first.operation)} of {nbytes(mean)} on average"
        f"{_along(program, first)} follow one another and take {duration(taken)}, of which "
        f"{percent(sum(map(_latency, rows)), taken)} is start-up.",
        remedy=f"Combine them: {_CALLS.get(first.operation, 'one collective')} of one array "
        "(jnp.concatenate of the flattened ones, jax.flatten_util.ravel_pytree) starts once.",
        kernel=kernel.name if kernel else "",
        source=kernel.source if kernel else "",
    )


def _in_a_row(program: ProgramProfile) -> Iterator[list[Collective]]:
    """Collectives of one kind and the same groups between which nothing is computed."""
    order = sorted(
        (kernel.start_ns, kernel.path)
        for kernel in program.kernels
        if kernel.critical == "collective" or any(map(kernel.busy_ns.get, _COMPUTING))
    )
    by_path: dict[str, list[Collective]] = {}
    for collective in program.collectives:
        by_path.setdefault(collective.path, []).append(collective)
    chain: list[Collective | None] = []
    for _, path in order:
        chain += by_path.get(path) or [None]
    for key, row in groupby(chain, _kind):
        if key is not None:
            yield [collective for collective in row if collective is not None]


def _kind(collective: Collective | None) -> tuple[object, ...] | None:
    """What collectives in a row have in common; None for a kernel that computes."""
    if collective is None:
        return None
    return collective.operation, collective.groups, collective.runs


def _time(row: Sequence[Collective]) -> float:
    return sum(collective.time_ns * collective.runs for collective in row)


def _latency(row: Sequence[Collective]) -> float:
    return sum(collective.latency_ns * collective.runs for collective in row)


def _is_latency(row: Sequence[Collective]) -> bool:
    return _latency(row) > _HALF * _time(row)


def _kernel_of(program: ProgramProfile, collective: Collective) -> KernelProfile | None:
    return next((kernel for kernel in program.kernels if kernel.path == collective.path), None)


def _along(program: ProgramProfile, collective: Collective) -> str:
    """The axes of the mesh that a collective goes along."""
    axes = axes_of(collective.groups[0], dict(program.mesh)) if collective.groups else ()
    return f" along {' and '.join(axes)}" if axes else ""


def exposed_collectives(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """Time of collectives that no computation hides."""
    alone = [kernel for kernel in program.kernels if kernel.critical == "collective"]
    computing = sorted(
        (kernel.start_ns, kernel.end_ns)
        for kernel in program.kernels
        if kernel.critical != "collective"
    )
    uncovered = [(kernel.time_ns * _share_alone(kernel, computing), kernel) for kernel in alone]
    exposed = sum(ns for ns, _ in uncovered)
    whole = sum(kernel.time_ns for kernel in alone)
    worst = costliest(uncovered)
    if exposed <= _EXPOSED_SHARE * program.total_ns or worst is None:
        return None
    combined = small_collectives(program, machine)
    if combined is not None and combined.ns > _HALF * exposed:
        return None  # which says more
    rows: dict[tuple[str, tuple[tuple[int, ...], ...]], list[Collective]] = {}
    for collective in program.collectives:
        rows.setdefault((collective.operation, collective.groups), []).append(collective)
    most = max(rows.values(), key=_time, default=[])
    return Cause(
        ns=exposed,
        what=f"collectives take {percent(whole, program.total_ns)} of the run, and "
        f"{percent(exposed, whole)} of that is hidden by no kernel{_describe_row(program, most)}.",
        remedy=_collective_remedy(program, most),
        kernel=worst.name,
        source=worst.source,
    )


def _share_alone(kernel: KernelProfile, computing: Sequence[tuple[float, float]]) -> float:
    hidden = sum(
        max(0.0, min(kernel.end_ns, end) - max(kernel.start_ns, start)) for start, end in computing
    )
    return max(0.0, 1 - hidden / max(kernel.end_ns - kernel.start_ns, 1e-9))


def _describe_row(program: ProgramProfile, row: Sequence[Collective]) -> str:
    if not row:
        return ""
    count = sum(collective.runs for collective in row)
    mean = ratio(sum(collective.input_size * collective.runs for collective in row), count)
    return (
        f"; most of it: {counted(count, row[0].operation)} of {nbytes(mean)}"
        f"{_along(program, row[0])} take {duration(_time(row))}"
    )


def _collective_remedy(program: ProgramProfile, row: Sequence[Collective]) -> str:
    if row and _is_latency(row):
        axes = _along(program, row[0]).removeprefix(" along ") or "that axis"
        return (
            "Start-up is most of their time: let each carry more (a larger batch per core), or use "
            f"fewer cores on the mesh's {axes}."
        )
    if row and row[0].dtype == "float32":
        return "Their bytes are most of their time: send bfloat16, which is half as many."
    return (
        "Their bytes are most of their time: put the axis on the closest cores "
        "(neuronjax.make_mesh puts the last one there), or start them earlier, while the layer "
        "before still computes."
    )


def waiting(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """Time in which nothing works: between kernels, and in small ones that load and store."""
    if launch(program, machine):
        return None  # which is why, and says more
    drawing = threefry_kernels(program)
    inside = [
        (kernel.added_ns - busy, kernel)
        for kernel in program.kernels
        if (busy := sum(kernel.busy_ns.values())) < _HALF * kernel.added_ns
        and kernel not in drawing
    ]
    within = sum(ns * kernel.runs for ns, kernel in inside)
    covered = sum(kernel.time_ns for kernel in program.kernels)
    idle = within + max(0.0, program.total_ns - program.launch_ns - covered)
    worst = costliest((ns * kernel.runs, kernel) for ns, kernel in inside)
    if idle <= _WAITING_SHARE * program.total_ns or worst is None:
        return None
    busy = sum(worst.busy_ns.values())
    return Cause(
        ns=min(idle, program.total_ns),
        what=f"nothing works for {percent(idle, program.total_ns)} of the time: small kernels wait "
        f"for operands and results; most of it: {counted(worst.runs, 'run')} of a kernel of "
        f"{duration(worst.added_ns)} with {duration(busy)} of work.",
        remedy=_LOOPS if worst.runs > 1 else _SMALL,
        kernel=worst.name,
        source=worst.source,
    )


_LOOPS = (
    "Do more in each step of the loop: unroll it (unroll= of jax.lax.scan), or use jax.vmap or "
    "jax.lax.associative_scan if its steps do not need each other."
)
_SMALL = "Compute on larger arrays: batch what is alike (jax.vmap), or stack small parameters."


def launch(program: ProgramProfile, machine: MachineFacts) -> Cause | None:
    """The cause of a short program: starting it takes much of its time."""
    if program.launch_ns <= _LAUNCH_SHARE * program.total_ns:
        return None
    return Cause(
        ns=program.launch_ns,
        what=f"starting the program takes {percent(program.launch_ns, program.total_ns)} of its "
        f"{duration(program.total_ns)}.",
        remedy="Do more in each program: jit the whole step, or scan over several.",
    )
