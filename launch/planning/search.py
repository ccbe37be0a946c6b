"""Branch and bound over pieces: one is measured only while a plan of it could still be among the
best."""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from launch.emulation import Estimate
from launch.errors import MeshError
from launch.planning.pieces import Answer, Asked, Measured
from launch.planning.prediction import Predicted, Predictions
from launch.planning.space import RECOMPUTATION, Piece, Plan, Space

SLACK = 0.95
"""A piece that is divided over more cores or computes more again takes at least this share of the
core time of one that is not: its kernels are smaller, and it sends more. Blocks that are stacked
take at least as long as the same blocks otherwise, as what they keep is written to stacks, and so
do those whose weights are gathered."""
MORE_ROWS, MANY_POSITIONS = 0.85, 2048
"""What twice the rows take at least, of twice the time, where a core has so many positions of each:
its engines are busy with one row already. With fewer a second one may come for nothing. Half of
the rows take at least SLACK of half of the time."""

Runner = Callable[[Sequence[Asked]], Iterator[Answer]]


@dataclass(frozen=True)
class Nearest:
    """A plan that does not fit, and the bytes of a core that it needs by kind: by measured pieces,
    or at least, by shapes alone."""

    is_measured: bool
    plan: Plan
    memory: Mapping[str, int]
    capacity: int

    @property
    def order(self) -> tuple[bool, int]:
        """Smaller for a better answer."""
        return not self.is_measured, sum(self.memory.values())


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The plans that a search has found, and what it looked at.

    Attributes:
      best: the best plan of each shape, fastest first, as many as were asked for.
      nearest: without any plan that fits, the one that needs least memory.
      also: the other plan that was asked about, if launch.train takes it.
      refused: what launch.train says of degrees that it does not take.
      pieces: those that were measured, of so many `candidates`, for so many `plans`.
    """

    best: Sequence[Predicted]
    nearest: Nearest | None
    refused: Mapping[str, str]
    pieces: Mapping[Piece, Measured]
    candidates: int
    plans: int
    also: Predicted | None = None


class Search:
    """A search for the best plans of a question, and for what `also` takes, another one. With
    `exhaustive` every piece is measured."""

    def __init__(
        self, space: Space, *, top: int, exhaustive: bool = False, also: Plan | None = None
    ) -> None:
        self._space, self._top, self._exhaustive = space, top, exhaustive
        self._predictions = Predictions(space.question, space.shares)
        self._also = also
        self._measured: dict[Piece, Measured] = {}
        self._fresh: list[Piece] = []
        self._refused = dict(space.refused)
        self._best: dict[tuple[int, ...], Predicted] = {}
        self._nearest: Nearest | None = None
        self._open = self._that_may_fit()

    def run(self, runner: Runner, width: int = 1) -> Outcome:
        """The best plans; `runner` measures pieces, `width` at a time."""
        candidates = len(self._open)
        is_first = True
        while chosen := self._next(width):
            asked = [Asked(self._space.question, piece) for piece in chosen]
            if is_first:
                asked.insert(0, Asked(self._space.question, chosen[0], of_update=True))
            answers = list(runner(asked))
            if is_first:
                rate = answers.pop(0)
                if isinstance(rate, float):
                    self._predictions.update_rate, is_first = rate, False
            for piece, answer in zip(chosen, answers, strict=True):
                self._take(piece, answer)
        if self._also is not None and self._also.piece not in self._measured:
            piece = self._also.piece
            self._open.setdefault(piece, [])
            self._take(piece, next(iter(runner([Asked(self._space.question, piece)]))))
        return Outcome(
            also=None if self._also is None else self.predict(self._also),
            best=self._rank_plans()[: self._top],
            nearest=self._nearest,
            refused=self._refused,
            pieces=self._measured,
            candidates=candidates,
            plans=sum(map(len, self._space.plans.values())),
        )

    def predict(self, plan: Plan) -> Predicted | None:
        """The prediction for any plan whose piece was measured."""
        measured = self._measured.get(plan.piece)
        return None if measured is None else self._predictions(plan, measured)

    def estimate(self, predicted: Predicted, price: float | None) -> Estimate:
        """A prediction as `neuronjax estimate` gives it; the price is that of an instance-hour."""
        return self._predictions.estimate(predicted, self._measured[predicted.plan.piece], price)

    def _that_may_fit(self) -> dict[Piece, list[Plan]]:
        """The plans whose parameters and least activations a core holds, by piece."""
        capacity = self._predictions.capacity
        fitting: dict[Piece, list[Plan]] = {}
        for piece, plans in self._space.plans.items():
            for plan in plans:
                try:
                    least = self._predictions.least_memory(plan)
                except MeshError as error:
                    self._refused.setdefault(str(plan.shape), str(error))
                    continue
                self._note(plan, least)
                if sum(least.values()) <= capacity:
                    fitting.setdefault(piece, []).append(plan)
        return fitting

    def _note(self, plan: Plan, memory: Mapping[str, int], is_measured: bool = False) -> None:
        """Remembers the plan that needs least, for the case that none fits: by measured pieces if
        any were, else by what shapes alone say."""
        place = Nearest(is_measured, plan, memory, self._predictions.capacity)
        if self._nearest is None or place.order < self._nearest.order:
            self._nearest = place

    def _rank_plans(self) -> list[Predicted]:
        return sorted(self._best.values(), key=lambda predicted: predicted.seconds)

    def _next(self, width: int) -> list[Piece]:
        """The open pieces with the least bounds that are below the worst of the best plans."""
        ranked = self._rank_plans()
        limit = ranked[self._top - 1].seconds if len(ranked) >= self._top else math.inf
        self._close()
        bounds = {piece: self._bound_seconds(piece) for piece in self._open}
        if not self._exhaustive:
            bounds = {piece: bound for piece, bound in bounds.items() if bound < limit}
        return heapq.nsmallest(width, bounds, key=lambda piece: (bounds[piece], *_order(piece)))

    def _close(self) -> None:
        """Drops plans that would not fit with what a piece keeps that was measured last, and keeps
        no more than theirs."""
        for known in self._fresh:
            measured = self._measured[known]
            for piece, plans in list(self._open.items()):
                if _keeps_more(piece, known):
                    self._open[piece] = [
                        plan
                        for plan in plans
                        if sum(self._predictions.memory(plan, measured, known)[0].values())
                        <= self._predictions.capacity
                    ]
                    if not self._open[piece]:
                        del self._open[piece]
        self._fresh = []

    def _bound_seconds(self, piece: Piece) -> float:
        """Seconds that the fastest open plan of a piece takes at least."""
        length = self._space.question.length
        bounds = (_least_block(piece, *known, length) for known in self._measured.items())
        block = max(bounds, default=0.0)
        return block * min(map(self._block_passes, self._open[piece])) * 1e-9

    def _block_passes(self, plan: Plan) -> int:
        return plan.passes * plan.layers_of(self._space.config.num_layers)

    def _take(self, piece: Piece, answer: Answer) -> None:
        plans = self._open.pop(piece)
        if not isinstance(answer, Measured):
            self._refused[f"{piece}"] = str(answer)
            return
        self._measured[piece] = answer
        self._fresh.append(piece)
        for plan in plans:
            predicted = self._predictions(plan, answer)
            if not predicted.fits:
                self._note(plan, predicted.memory, is_measured=True)
                continue
            known = self._best.get(plan.shape)
            if known is None or _rank(predicted) < _rank(known):
                self._best[plan.shape] = predicted


def _rank(predicted: Predicted) -> tuple[float, int]:
    """Faster first; of equally fast plans the one that needs less memory."""
    return round(predicted.seconds, 9), predicted.bytes


def _order(piece: Piece) -> tuple[int, ...]:
    """First what is least divided and computed again: it bounds most of the others."""
    keeps = RECOMPUTATION.index(piece.recompute)
    return piece.group, piece.expert, piece.rows, piece.stacked, piece.sharded, keeps


def _keeps_more(piece: Piece, known: Piece) -> bool:
    """Whether a piece keeps at least as much for its backward pass as another one."""
    return (
        (piece.expert, piece.context, piece.precision, piece.stacked, piece.sharded)
        == (known.expert, known.context, known.precision, known.stacked, known.sharded)
        and known.tensor % piece.tensor == 0
        and piece.rows >= known.rows
        and RECOMPUTATION.index(piece.recompute) <= RECOMPUTATION.index(known.recompute)
    )


def _least_block(piece: Piece, known: Piece, measured: Measured, length: int) -> float:
    """Returns the least time of a piece's block, by another that was measured; 0: it says nothing.

    See SLACK and MORE_ROWS for what is assumed.
    """
    if (
        (piece.expert, piece.precision) != (known.expert, known.precision)
        or piece.tensor % known.tensor
        or piece.context % known.context
        or RECOMPUTATION.index(piece.recompute) < RECOMPUTATION.index(known.recompute)
        or known.stacked > piece.stacked
        or known.sharded > piece.sharded
    ):
        return 0.0
    if replace(piece, stacked=False, sharded=False) == replace(known, stacked=False, sharded=False):
        return measured.block
    rows, share = piece.rows / known.rows, 1.0
    if rows > 1:
        share = MORE_ROWS if length // piece.context >= MANY_POSITIONS else 0.5
    return (
        SLACK * measured.block * rows * share ** math.log2(max(rows, 1)) * known.group / piece.group
    )
