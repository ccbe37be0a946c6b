"""Kernels of NKI 0.x: traced once or twice, program of the grid after program."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from neuronjax.errors import KernelError, quoted
from neuronjax.nki.calls import line_of
from neuronjax.nki.kernel import Kernel, kernel_of, simulate
from neuronjax.nki.known_failures import LAST_EARLIER_SDK
from neuronjax.nki.legacy import engines
from neuronjax.nki.legacy import lives as living
from neuronjax.nki.legacy.lives import Lives, Plan
from neuronjax.nki.legacy.products import spread
from neuronjax.nki.legacy.tile import Tile
from neuronjax.nki.legacy.walks import plain_view
from neuronjax.nki.loop_marks import LoopMarks, Nest
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import Trace, current, is_tracing


@dataclasses.dataclass(frozen=True, repr=False)
class LegacyKernel(Kernel[Any]):
    """A function marked by `neuronxcc.nki.jit`."""

    #: What a call with arrays does: run the kernel in JAX's program, or at once.
    mode: str = "auto"

    def __getitem__(self, grid: int | tuple[int, ...]) -> LegacyKernel:
        """The kernel with so many programs, which run one after the other on one core."""
        programs = grid if isinstance(grid, tuple) else (grid,)
        if not all(isinstance(count, int) and count > 0 for count in programs):
            raise KernelError(
                f"{self.function.__name__}[{quoted(grid)}] is no number of programs; write sizes, "
                "such as kernel[4, 8]."
            )
        original = getattr(self.function, "__wrapped__", self.function)
        return dataclasses.replace(self, function=_traceable(original, tuple(map(int, programs))))

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        if self.mode in ("simulation", "baremetal") and not is_tracing():
            return simulate(self)(*arguments, **keywords)
        if is_tracing():
            original = getattr(self.function, "__wrapped__", self.function)
            return original(*arguments, **keywords)
        return super().__call__(*arguments, **keywords)


def mark_kernel(
    function: Callable[..., object], mode: str = "auto", target: str | None = None
) -> LegacyKernel:
    """A function as a kernel of NKI 0.x."""
    if isinstance(function, LegacyKernel):
        return dataclasses.replace(function, mode=mode)
    checked = kernel_of(function)
    return LegacyKernel(_traceable(checked.function, ()), target=target, mode=mode)


def _traceable(function: Callable[..., object], grid: tuple[int, ...]) -> Callable[..., object]:
    """A function of tensors of the present dialect that writes what a kernel of NKI 0.x means."""

    @functools.wraps(function)
    def traced(*arguments: object, **keywords: object) -> object:
        trace = current()
        trace.spread, trace.may_reorder = spread, True
        trace.sdk = min(trace.sdk, LAST_EARLIER_SDK)
        begin = _Beginning(trace)
        given, named = jax.tree.map(_as_tile, (arguments, keywords))
        lives = Lives(trace, grid=grid)
        returned = _run(function, given, named, lives)
        if lives.needs_plan:
            plan = lives.planned()
            begin.restore(trace)
            lives = Lives(trace, plan=plan, grid=grid)
            returned = _run(function, given, named, lives)
            _note(trace, lives, plan)
        engines.choose(trace, lives.named)
        return jax.tree.map(_as_plain, returned)

    return traced


def _as_plain(value: object) -> object:
    return plain_view(value) if isinstance(value, Tensor) else value


def _as_tile(value: object) -> object:
    return Tile.of(value) if isinstance(value, Tensor) else value


def _run(
    function: Callable[..., object],
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    lives: Lives,
) -> object:
    token = living.set_lives(lives)
    try:
        if not lives.grid:
            return function(*arguments, **keywords)
        return _run_programs(function, arguments, keywords, lives)
    finally:
        living.reset_lives(token)


def _run_programs(
    function: Callable[..., object],
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    lives: Lives,
) -> object:
    """All programs of a grid, as iterations of a loop."""
    trace, returned = lives.trace, None
    marks = LoopMarks(line_of(function), is_affine=True)
    trace.nest.begin(marks)
    for program in itertools.product(*map(range, lives.grid)):
        trace.nest.begin_round(marks)
        lives.program, lives.shared_so_far = program, 0
        returned = function(*arguments, **keywords)
    marks.is_complete = True
    trace.nest.end(marks)
    count = math.prod(lives.grid)
    trace.remarks[f"the {count} programs of the grid run one after the other on one core"] = None
    return returned


def _note(trace: Trace, lives: Lives, plan: Plan) -> None:
    """Says what does not fit into SBUF."""
    if not plan.spilled:
        return
    names = ", ".join(lives.declared[number].line for number in sorted(plan.spilled))
    trace.remarks[
        f"tensors do not fit into SBUF and lie in HBM: {lives.saved} bytes are saved and "
        f"{lives.reloaded} reloaded; they are declared in {names}"
    ] = None


class _Beginning:
    """What a trace had before the kernel."""

    def __init__(self, trace: Trace) -> None:
        self._buffers, self._python = list(trace.buffers), trace.nest.python
        self._declared = dict(trace.declared)

    def restore(self, trace: Trace) -> None:
        """Forgets what the kernel has written."""
        trace.buffers[:] = self._buffers
        for written in (
            trace.instructions, trace.accumulated, trace.advice, trace.remarks, trace.names,
            trace.aliases, trace.registers, trace.register_loops,
        ):  # fmt: skip
            written.clear()
        trace.declared.clear()
        trace.declared.update(self._declared)
        trace.nest = Nest(trace.mark, python=self._python)
