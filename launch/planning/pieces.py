"""Pieces are measured by training steps of one and two blocks, from which the time and the memory
of any depth, number of micro-batches and number of stages follow.

A step's time is a sum of products of its numbers of blocks, micro-batches and ticks, as its loops
take equally long each time; so a few small steps give the summands.
"""

from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import AbstractMesh

from launch.emulation import Estimate, bench_of
from launch.errors import LaunchError
from launch.estimates import language_work, step_workload
from launch.model_workloads import layer_depths
from launch.planning.question import Question, described_by
from launch.planning.shares import Shares, used
from launch.planning.space import Piece, Plan
from models.errors import ModelsError

MICRO_BATCHES = 8
"""Micro-batches of the steps that are measured: with as many, what happens once per step is small,
and stages of the deepest pipeline that is measured keep as many inputs as with any more."""
SHARDED = 2
"""Cores that share weights where FSDP is measured: more take longer by their collectives alone."""
STAGES = (2, 4)
"""Stages of the pipelines that are measured: embedding and head are divided among them."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The summands of a micro-batch's time and of memory. Times in ns, memory in bytes.

    Attributes:
      block: forward and backward pass of a block.
      outside: embedding, head, loss, and what else a micro-batch takes beside blocks.
      outside_by_stages: the part of `outside` that is divided among stages.
      scratch: what lies between kernels without any blocks; `layer_scratch` comes with each block.
      slot: what a stage keeps of a micro-batch for each block of a chunk.
      spilled, layer_spilled, instructions, layer_instructions: for the runtime's ledger.
      example: an estimate of such a step, whose traits say how far its time is to be trusted.
    """

    block: float
    outside: float
    outside_by_stages: float = 0.0
    scratch: float
    layer_scratch: float
    slot: float = 0.0
    spilled: float
    layer_spilled: float
    instructions: float
    layer_instructions: float
    example: Estimate


@dataclass(frozen=True)
class Asked:
    """A piece to be measured, or what the optimizer takes for it."""

    question: Question
    piece: Piece
    of_update: bool = False


Answer = Measured | float | str
"""A piece; what the optimizer takes for an element of a core, in ns; or what launch.train says if
it does not take such a step."""


def measure(asked: Asked) -> Answer:
    """Measures what is asked for, which may be done in a process of its own."""
    try:
        bench = _Bench(asked.question, asked.piece)
        if asked.of_update:
            return bench.update_rate()
        return bench.of_pipeline() if asked.piece.stacked else bench.of_blocks()
    except (LaunchError, ModelsError) as error:
        return str(error)


class _Bench:
    """The bench that measures steps of one piece."""

    def __init__(self, question: Question, piece: Piece) -> None:
        self._question, self._piece = question, piece
        self._shares = Shares(question)
        self._period = period_of(described_by(question.model).config)

    def _plan(self, micro_batches: int, stages: int = 1, schedule: str = "1f1b") -> Plan:
        fsdp = SHARDED if self._piece.sharded else 1
        return Plan(
            piece=self._piece, data=1, fsdp=fsdp, stages=stages, micro_batches=micro_batches,
            zero_1=False, schedule=schedule,
        )  # fmt: skip

    def _step(self, plan: Plan, blocks: int) -> Estimate:
        """The estimate of a step of so many blocks per stage."""
        question, piece = self._question, self._piece
        described = described_by(question.model)
        depth = blocks * plan.stages
        model = described._replace(config=replace(described.config, num_layers=depth))
        parallelism = plan.parallelism.fitted(model.config)
        rows = piece.rows * piece.expert * plan.fsdp * plan.micro_batches
        config = question.config(parallelism, piece.precision, rows)
        work = replace(language_work(model, config), flops=None)

        def make(mesh: AbstractMesh) -> dict[str, Any]:
            return step_workload(work, config, mesh, depth)

        return bench_of(question.target).estimate(make, parallelism.abstract_mesh())

    def _count_used(self, plan: Plan, blocks: int) -> int:
        return used(self._shares.of(plan.parallelism, self._piece.precision), blocks)

    def update_rate(self) -> float:
        """The optimizer's time for an element, in ns: what a step takes beside micro-batches."""
        few, many = (self._plan(count) for count in (MICRO_BATCHES // 2, MICRO_BATCHES))
        blocks = self._period
        short, long = self._step(few, blocks), self._step(many, blocks)
        once = 2 * short.step_ns - long.step_ns - short.launch_ns
        return max(once, 0.0) / self._count_used(few, blocks)

    def of_blocks(self) -> Measured:
        """Measures blocks that follow each other on the same cores."""
        plan, blocks = self._plan(MICRO_BATCHES), self._period
        shallow, deep = (self._step(plan, count * blocks) for count in (1, 2))
        times = [(step.step_ns - step.launch_ns) / MICRO_BATCHES for step in (shallow, deep)]
        block = (times[1] - times[0]) / blocks
        return self._line(shallow, deep, blocks, block=block, outside=times[0] - blocks * block)

    def of_pipeline(self) -> Measured:
        """Measures blocks of a stage, and what stages share."""
        few, many = STAGES
        plan = self._plan(MICRO_BATCHES, few)
        other = self._plan(MICRO_BATCHES, many)
        if self._question.cores % (many * self._piece.group * self._piece.expert * plan.fsdp):
            other = self._plan(MICRO_BATCHES, few, "gpipe")
        shallow, deep, third = self._step(plan, 1), self._step(plan, 2), self._step(other, 1)
        times = [
            (step.step_ns - step.launch_ns) / made.passes
            for step, made in ((shallow, plan), (deep, plan), (third, other))
        ]
        block = times[1] - times[0]
        # Outside of blocks a stage takes a part of the vocabulary: by + shared / stages.
        shared = 0.0
        if other.stages > few:
            shared = (times[0] - times[2]) / (1 / few - 1 / many)
        measured = self._line(
            shallow, deep, 1, block=block, outside=times[0] - block - shared / few
        )
        slot = self._slot(shallow, third, plan, other)
        return replace(
            measured,
            outside_by_stages=shared,
            slot=slot,
            layer_scratch=measured.layer_scratch - (plan.slots + 1) * slot,
        )

    def _slot(self, shallow: Estimate, other: Estimate, plan: Plan, of_other: Plan) -> float:
        """Returns the bytes that a stage keeps of a micro-batch for a block: the difference of two
        steps, without the smaller part of embedding and head that more stages have each."""
        size = self._shares.sizes(self._piece.precision).in_step
        fewer = size * (self._count_used(plan, 1) - self._count_used(of_other, 1))
        kept = _scratch(other) - _scratch(shallow) + fewer
        return max(kept / (of_other.slots - plan.slots), 0.0)

    def _line(
        self, shallow: Estimate, deep: Estimate, blocks: int, *, block: float, outside: float
    ) -> Measured:
        def through(first: float, second: float) -> tuple[float, float]:
            slope = (second - first) / blocks
            return first - blocks * slope, slope

        scratch, layer_scratch = through(_scratch(shallow), _scratch(deep))
        spilled, layer_spilled = through(shallow.spilled_bytes, deep.spilled_bytes)
        instructions, layer_instructions = through(
            shallow.instruction_count, deep.instruction_count
        )
        return Measured(
            block=block, outside=outside, scratch=scratch, layer_scratch=layer_scratch,
            spilled=spilled, layer_spilled=layer_spilled, instructions=instructions,
            layer_instructions=layer_instructions, example=deep,
        )  # fmt: skip


def period_of(config: Any) -> int:
    """Finds after how many blocks of a model the next ones are like the first."""
    shallow, deep = layer_depths(config) or (1, 2)
    return 1 if deep == shallow + 1 else shallow


def _scratch(estimate: Estimate) -> float:
    return float(estimate.memory.get("scratch", 0))
