"""The plans that are searched, and the kinds of micro-batches whose plans share measured pieces."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from launch.errors import LaunchError
from launch.planning.question import Question, described_by
from launch.planning.shares import Shares
from launch.training.parallelism import Parallelism
from launch.training.pipeline_schedule import SCHEDULES
from models.errors import ShardingError
from models.parallel.context import ContextParallel

RECOMPUTATION = ("none", "selective", "full")
"""Policies from the one that keeps most to the one that computes most again. `offload` is not
searched, as the ledger has no host memory; nor is `dots`, which keeps more than `full` and takes
longer for most pieces of Llama-3.1-8B (TP2 to TP8: 12 to 17 %)."""
MOST_POSITIONS = 8192
"""Positions of a core's micro-batch at most, if it has several rows. With so many the engines are
busy: Llama-3.1-8B takes 1 to 4 % longer for a row of 8,192 where there are two of them."""
LONG_ROWS = 16_384
"""Tokens of a row from which on its positions are divided among cores, too."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A micro-batch and how a group of cores works on it: what is measured once for all plans."""

    tensor: int
    context: int = 1
    expert: int = 1
    rows: int = 1
    recompute: str
    precision: str
    stacked: bool = False
    """Whether its blocks are those of a stage of a pipeline, which are compiled as one."""
    sharded: bool = False
    """Whether the weights of a block are gathered for use (FSDP)."""

    @property
    def group(self) -> int:
        """Cores that share a sequence."""
        return self.tensor * self.context


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that the planner decides about a run."""

    piece: Piece
    data: int
    fsdp: int
    stages: int = 1
    micro_batches: int
    """Micro-batches that one group of cores takes in a step."""
    zero_1: bool
    schedule: str = "1f1b"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The degrees that decide which cores share what; a table has the best plan of each."""
        return self.piece.tensor, self.stages, self.piece.context, self.piece.expert

    @property
    def parallelism(self) -> Parallelism:
        """The plan as launch.train takes it."""
        piped = self.stages > 1
        return Parallelism(
            pipeline_parallel_size=self.stages,
            data_parallel_size=self.data,
            fully_sharded_size=self.fsdp,
            expert_parallel_size=self.piece.expert,
            context_parallel_size=self.piece.context,
            tensor_parallel_size=self.piece.tensor,
            zero_1=self.zero_1,
            pipeline_schedule=self.schedule,
            pipeline_parallel_num_microbatches=self.micro_batches if piped else None,
            gradient_accumulation_steps=1 if piped else self.micro_batches,
            recompute=self.piece.recompute,
        )

    def layers_of(self, layers: int) -> int:
        """Blocks of a stage, or of the whole model."""
        return -(-layers // self.stages)

    @property
    def slots(self) -> int:
        """Micro-batches of which a stage keeps inputs for its backward passes at most: as many as
        it gets before the first one comes back (launch.training.pipeline_schedule)."""
        delay = SCHEDULES[self.schedule](self.stages, self.micro_batches, 1)
        return min(self.micro_batches, delay + self.stages)

    @property
    def passes(self) -> int:
        """Forward passes that are made one after the other, the bubble among them; there
        are as many backward passes."""
        return self.micro_batches + self.stages - 1


class Space:
    """All plans of a question, by piece.

    Tensor parallelism stays within a machine. ``refused`` has what launch.train says of degrees
    that it does not take.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.config = described_by(question.model).config
        self.shares = Shares(question)
        self.refused: dict[str, str] = {}
        self.plans: dict[Piece, list[Plan]] = {}
        for plan in self._plans():
            self.plans.setdefault(plan.piece, []).append(plan)

    def _plans(self) -> Iterator[Plan]:
        cores, layers = self.question.cores, self.config.num_layers
        within = cores // self.question.machines
        for tensor in _divisors(within):
            if not self._takes(tensor):
                continue
            for context in self._contexts(cores // tensor):
                for expert in self._experts(cores // tensor // context):
                    rest = cores // (tensor * context * expert)
                    for stages in _divisors(rest):
                        if stages <= layers:
                            yield from self._of_shape(tensor, context, expert, stages)

    def _takes(self, tensor: int) -> bool:
        try:
            self.shares.of(Parallelism(tensor_parallel_size=tensor), self.question.precisions[0])
        except LaunchError as error:
            self.refused[f"tensor={tensor}"] = str(error)
            return False
        return self.question.length % tensor == 0

    def _contexts(self, most: int) -> Iterator[int]:
        for size in _divisors(most) if self.question.length >= LONG_ROWS else [1]:
            try:
                ContextParallel(size, "ring").order(self.question.length)
            except ShardingError:
                continue
            yield size

    def _experts(self, most: int) -> Sequence[int]:
        experts = getattr(self.config, "experts", None)
        if experts is None:
            return [1]
        return [size for size in _divisors(most) if experts.count % size == 0]

    def _of_shape(self, tensor: int, context: int, expert: int, stages: int) -> Iterator[Plan]:
        question = self.question
        replicas = question.cores // (tensor * context * expert * stages)
        per_group, rest = divmod(question.batch, replicas * expert)
        if rest:
            return
        most = max(MOST_POSITIONS * context // question.length, 1)
        for rows in [rows for rows in _powers(most) if per_group % rows == 0]:
            micro_batches = per_group // rows
            for recompute in RECOMPUTATION:
                for precision in question.precisions:
                    piece = Piece(
                        tensor=tensor, context=context, expert=expert, rows=rows,
                        recompute=recompute, precision=precision, stacked=stages > 1,
                    )  # fmt: skip
                    yield from self._of_piece(piece, replicas, stages, micro_batches)

    def _of_piece(
        self, piece: Piece, replicas: int, stages: int, micro_batches: int
    ) -> Iterator[Plan]:
        for fsdp in _divisors(replicas):
            data = replicas // fsdp
            for zero_1 in (True, False) if data > 1 else (False,):
                for schedule in _schedules(stages):
                    yield Plan(
                        piece=replace(piece, sharded=fsdp > 1), data=data, fsdp=fsdp,
                        stages=stages, micro_batches=micro_batches, zero_1=zero_1,
                        schedule=schedule,
                    )  # fmt: skip

    def nearest_batches(self) -> tuple[int, int]:
        """The multiples of what divides the machines best around the batch asked for."""
        least = min(
            self.question.cores // stages // tensor
            for tensor in _divisors(self.question.cores // self.question.machines)
            if self._takes(tensor)
            for stages in _divisors(self.question.cores // tensor)
            if stages <= self.config.num_layers
        )
        below = self.question.batch // least * least
        return below, below + least


def _schedules(stages: int) -> Sequence[str]:
    return ("1f1b",) if stages == 1 else ("1f1b", "gpipe")


@functools.cache
def _divisors(number: int) -> Sequence[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _powers(most: int) -> Sequence[int]:
    return [1 << exponent for exponent in range(most.bit_length())]
