"""The numbers of a kernel's loops, whose iterations the trace is told of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki.refusal import checked
from neuronjax.nki.tracing import current, is_tracing


@dataclass(frozen=True)
class LoopRange:
    """`range` for loops of a kernel, which the trace is told of."""

    numbers: range
    #: Whether the kernel allows iterations in any order.
    is_affine: bool = False
    #: Whether it asks for iterations that are written out.
    is_static: bool = False

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> int:
        return self.numbers[index]

    def __iter__(self) -> Iterator[int]:
        if not is_tracing():
            yield from self.numbers
            return
        trace = current()
        marks = trace.begin_loop(self.is_affine, self.is_static)
        try:
            for number in self.numbers:
                trace.nest.begin_round(marks)
                yield number
            marks.is_complete = True
        finally:
            trace.nest.end(marks)


@checked("nki.language.sequential_range")
def loop_range(start: int, stop: int | None = None, step: int = 1) -> LoopRange:
    """The numbers of `range`, for a loop that may stay one.

    UnsupportedProgramError: a bound is no integer.
    """
    for bound in (start, 0 if stop is None else stop, step):
        if not hasattr(bound, "__index__"):
            raise UnsupportedProgramError(
                f"{current().line()}: {bound!r} cannot be a loop bound; bounds must be known when "
                "the kernel is traced. Pass integers."
            )
    return LoopRange(range(start) if stop is None else range(start, stop, step))


@checked("nki.language.affine_range")
def affine_range(start: int, stop: int | None = None, step: int = 1) -> LoopRange:
    """The numbers of `range`, for a loop whose iterations depend on each other for sums alone.

    Raises as `loop_range` does.
    """
    return LoopRange(loop_range(start, stop, step).numbers, is_affine=True)


@checked("nki.language.static_range")
def static_range(start: int, stop: int | None = None, step: int = 1) -> LoopRange:
    """The numbers of `range`, for a loop whose iterations are all written out.

    Raises as `loop_range` does.
    """
    return LoopRange(loop_range(start, stop, step).numbers, is_static=True)
