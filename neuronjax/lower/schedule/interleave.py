"""Kernels in an order that keeps engines busy: independent chains beside each other.

Engines run their instructions in order, and lowering writes one chain after the other: what waits
for another engine keeps everything behind it waiting. So loops whose iterations leave engines idle
are written out (`unroll`) or have their iterations overlap (`pipelining`), tiles that hold several
values one after the other become several (`webs`), and the nodes of each list come in the order in
which a simulated core takes them (`greedy`). What is not faster by that in the simulation stays as
it was.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping, Set
from typing import NamedTuple

from neuronjax.errors import OnChipMemoryError
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.prices import Prices
from neuronjax.lower.schedule.arrange import nbytes_of
from neuronjax.lower.schedule.clocks import Timer
from neuronjax.lower.schedule.reorder import Reordering
from neuronjax.lower.schedule.worthwhile import Prospect, Shares, choose_kinds, shares_of
from neuronjax.lower.sync.alike import Outline, at_places, outline
from neuronjax.lower.sync.dependences import Overlap
from neuronjax.lower.sync.overlap import Overlaps
from neuronjax.lower.sync.synchronise import Semaphores
from neuronjax.lower.tuning import DEFAULT, Tuning
from neuronjax.lower.write.rebuild import with_kernels
from neuronjax.program.program import Kernel, Program, Target
from neuronjax.program.walk import is_counted, kernels, leaves


class Orders:
    """The orders that have been found, for programs that have kernels in common.

    Those of other prices, of another target or of other tuning are forgotten.
    """

    def __init__(self) -> None:
        self._prices: tuple[Prices, Target, Tuning] | None = None
        self._candidates: dict[Hashable, Candidate] = {}

    def known(self, prices: Prices, target: Target, tuning: Tuning) -> dict[Hashable, Candidate]:
        """The kernel of each outline for which the order was found."""
        if self._prices != (prices, target, tuning):
            self._prices, self._candidates = (prices, target, tuning), {}
        return self._candidates


def interleaved(
    program: Program,
    prices: Prices,
    orders: Orders | None = None,
    semaphores: Semaphores | None = None,
    chosen: Set[Candidate] | None = None,
    tuning: Tuning = DEFAULT,
) -> Program:
    """The program with kernels in a faster order. Values stay the same bit by bit.

    Call it before `allocate`; tiles of PSUM in kernels that it changes get addresses. `orders` and
    `semaphores` are taken over from other programs, and kept for them. An order is looked for
    where it is `chosen`; None: where it promises enough of this program.
    """
    known = orders or Orders(), semaphores or Semaphores()
    members = _members(program, prices, *known, tuning)
    if chosen is None:
        chosen = choose_kinds(_shares(program, members, tuning), tuning)
    faster = {key: member.faster() for key, member in members.items() if member.first in chosen}

    return with_kernels(program, lambda kernel: faster.get(id(kernel), kernel))


def count_kinds(
    program: Program, prices: Prices, orders: Orders, semaphores: Semaphores, tuning: Tuning
) -> Shares[Candidate]:
    """How often each kind of kernel runs in a program, before it is `interleaved`."""
    return _shares(program, _members(program, prices, orders, semaphores, tuning), tuning)


def _shares(program: Program, members: Mapping[int, _Member], tuning: Tuning) -> Shares[Candidate]:
    kinds = {key: member.first for key, member in members.items()}
    return shares_of(program, kinds, tuning.unknown_trips)


def _members(
    program: Program, prices: Prices, orders: Orders, semaphores: Semaphores, tuning: Tuning
) -> dict[int, _Member]:
    """The kernels, by their ids, that may have another order."""
    if any(buffer.on_chip for buffer in program.buffers):
        return {}
    overlaps = Overlaps(program)
    overlap_of = {function.name: overlaps.within(function) for function in program.functions}
    outside = overlaps.within(None)
    members: dict[int, _Member] = {}
    candidates = orders.known(prices, program.target, tuning)
    for place, kernel in kernels(program):
        if id(kernel) not in members and is_counted(kernel.body):
            overlap = overlap_of[place.function.name] if place.function else outside
            shared = overlaps.begin_together(overlap)
            own = outline(kernel, shared, overlap)
            timer = Timer(prices, shared, tuning)
            new = Candidate(kernel, own, program, timer, overlap, semaphores)
            members[id(kernel)] = _Member(kernel, own, candidates.setdefault(own.key, new))
    return members


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A kernel of instructions and loops that may be faster in another order."""

    kernel: Kernel
    outline: Outline
    program: Program
    timer: Timer
    overlap: Overlap
    semaphores: Semaphores

    @property
    def short(self) -> float:
        """A time that leaves nothing to look for, in ns."""
        return self.timer.tuning.idle_ratio * self.timer.work(self.kernel.body)

    @functools.cached_property
    def prospect(self) -> Prospect:
        """What clocks promise; they do not see that tiles share memory, and what that takes."""
        body = self.kernel.body
        size = sum(1 for _ in leaves(body))
        time = self.timer.time(body)
        if time <= self.short and self.is_crowded:
            time = self.now or time
        gain = time - self.timer.work(body) if time > self.short and size > 1 else 0.0
        return Prospect(time, gain, size)

    @property
    def is_crowded(self) -> bool:
        """Whether tiles have to share memory."""
        room = self.program.target.core.sbuf.usable_partition_bytes
        return sum(map(nbytes_of, self.kernel.buffers)) > room

    @functools.cached_property
    def now(self) -> float | None:
        """How long it takes in the order it has, in ns; None: its tiles do not fit."""
        return self.time(self.kernel)

    @functools.cached_property
    def faster(self) -> Kernel:
        """The kernel in another order, if it is faster then."""
        best, least = self.kernel, self.now
        if least is None or least < self.short:
            return best
        tuning = self.timer.tuning
        is_small = self.prospect.size <= tuning.joined_instructions
        for is_apart in (False, True):
            for mixes in (False, True) if is_small else (False,):
                work = Reordering(
                    self.kernel, self.program, self.timer, mixes=mixes, is_apart=is_apart
                )
                after: float | None = math.inf
                for moves_loops in (False, True) if is_small else (False,):
                    changed = work.run(moves_loops)
                    after = self.time(changed) if work.has_gained else math.inf
                    if after is not None and after < tuning.order_share * least:
                        best, least = changed, after
                    if least < self.short or not work.has_mixed:
                        break
                if least < self.short or not work.could_mix:
                    break
            if best is not self.kernel or after is not None:
                break
        return best

    def time(self, kernel: Kernel) -> float | None:
        """How long a kernel takes, in ns; None: its tiles do not fit."""
        alone = dataclasses.replace(
            self.program, functions=(), buffers=(), aliases=(), body=(kernel,)
        )
        try:
            allocated = allocate(alone, check=False, tuning=self.timer.tuning)
        except OnChipMemoryError:
            return None
        (placed,) = allocated.body
        assert isinstance(placed, Kernel)
        return self.timer.prices.time(self.semaphores.put(placed, self.overlap))


class _Member(NamedTuple):
    """A kernel, and the first one that it is like."""

    kernel: Kernel
    outline: Outline
    first: Candidate

    def faster(self) -> Kernel:
        """The kernel in the order that is faster for the first one, if there is any."""
        known = self.first.faster
        if known is self.first.kernel:
            return self.kernel
        body = at_places(known.body, self.first.outline, self.outline)
        return dataclasses.replace(self.kernel, body=body, buffers=known.buffers)
