"""The time and the memory of a plan, from measured pieces and from the costs of collectives."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from launch.emulation import Estimate, bench_of, price_for
from launch.planning.pieces import MICRO_BATCHES, SHARDED, STAGES, Measured
from launch.planning.question import Question, described_by
from launch.planning.shares import Share, Shares, held, is_gathered, used
from launch.planning.space import Piece, Plan
from launch.training.layout import ZERO
from models.decoder.flops import training_flops
from models.sharding import FULLY_SHARDED

BLOCKS, BUBBLE, OUTSIDE = "blocks", "pipeline bubble", "embedding and head"
GATHERS, GRADIENTS, UPDATE = "FSDP", "gradients between cores", "optimizer"
GATHERS_OF_A_PASS, SCATTERS_OF_A_PASS = 2, 1
"""The collectives of a pass with FSDP: weights are gathered for the forward pass and again for the
backward pass, and parts of gradients' sums are scattered."""
LAYOUT_NS = 0.12
"""The time in which a gradient's element is laid out for ZeRO-1's scatter, in ns: copies of 0.36e9
elements of a core take 45 ms on trn1 in the whole estimate of a step of eight wide blocks."""
FLOAT_BYTES = 4
"""The bytes of a logit, which is FP32 whatever the precision."""


@dataclass(frozen=True)
class Predicted:
    """A plan with its parts: seconds by what takes them, bytes of a core by kind."""

    plan: Plan
    parts: Mapping[str, float]
    memory: Mapping[str, int]
    memory_ranges: Mapping[str, tuple[int, int]]
    capacity: int

    @property
    def seconds(self) -> float:
        """The time of a step: its parts follow each other."""
        return sum(self.parts.values())

    @property
    def bytes(self) -> int:
        """Memory of a core."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether a core's memory suffices."""
        return self.bytes <= self.capacity


class Predictions:
    """Predicts the time and the memory of the plans of a question."""

    def __init__(self, question: Question, shares: Shares, update_rate: float = 0.0) -> None:
        self.question, self._shares, self.update_rate = question, shares, update_rate
        self._bench = bench_of(question.target)
        self._config = described_by(question.model).config
        self._layers: int = self._config.num_layers
        self._of = functools.cache(self._shares_of)
        self._exchanged = functools.cache(self._exchanges)
        self._held = functools.cache(self._held_and_used)

    def __call__(self, plan: Plan, measured: Measured) -> Predicted:
        """The prediction for a plan whose piece was measured."""
        memory, ranges = self.memory(plan, measured, plan.piece)
        return Predicted(plan, self._parts(plan, measured), memory, ranges, self.capacity)

    @property
    def capacity(self) -> int:
        """Bytes of a core's memory."""
        return self._bench.machine.core_hbm_bytes

    def _parts(self, plan: Plan, measured: Measured) -> dict[str, float]:
        layers = plan.layers_of(self._layers)
        block, outside = self._of_micro_batch(plan, measured)
        busy = plan.micro_batches * layers
        idle = (plan.stages - 1) * layers
        once = plan.micro_batches + plan.stages - 1
        block_gathers, other_gathers, gradients = self._exchanged(*_degrees(plan))
        times = {
            BLOCKS: block * busy,
            BUBBLE: block * idle,
            OUTSIDE: outside * once,
            GATHERS: block_gathers * (busy + idle) + other_gathers * once,
            GRADIENTS: gradients,
            UPDATE: measured.example.launch_ns + self.update_rate * self._held(*_degrees(plan))[0],
        }
        return {name: time * 1e-9 for name, time in times.items()}

    def _of_micro_batch(self, plan: Plan, measured: Measured) -> tuple[float, float]:
        """Returns the time of a block, and of all else, without the share that micro-batches of the
        measured step had in its update of parameters."""
        passes = MICRO_BATCHES + (STAGES[0] - 1 if plan.stages > 1 else 0)
        rest, all_of_one = (self._whole(plan, blocks) for blocks in (0, 1))
        rate = self.update_rate / passes
        outside = measured.outside + measured.outside_by_stages / plan.stages - rate * rest
        return max(measured.block - rate * (all_of_one - rest), 0.0), max(outside, 0.0)

    def least_memory(self, plan: Plan) -> dict[str, int]:
        """Bytes that a plan needs at least, by kind, from shapes alone: parameters, gradients, the
        optimizer's state, and what blocks keep for their backward passes."""
        sizes = self._shares.sizes(plan.piece.precision)
        between, within = self._held(*_degrees(plan))
        kept = kept_of_block(self._config, plan, self.question.length) * sizes.compute
        blocks = plan.layers_of(self._layers)
        slots = plan.slots if plan.stages > 1 else 1
        positions = plan.piece.rows * self.question.length // plan.piece.context
        logits = positions * self._config.vocab_size // (plan.piece.tensor * plan.stages)
        return {
            "weights": between * sizes.weight,
            "optimizer": round(between * sizes.optimizer),
            "gradients": within * sizes.gradient if plan.micro_batches > 1 else 0,
            "activations": kept * blocks * slots + logits * FLOAT_BYTES,
        }

    def memory(
        self, plan: Plan, measured: Measured, piece: Piece
    ) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        """Bytes of a core by kind, and the ranges of what the runtime decides, for a plan with the
        activations of a piece that was measured: the plan's own, or one that keeps less."""
        sizes = self._shares.sizes(plan.piece.precision)
        between, within = self._held(*_degrees(plan))
        blocks = plan.layers_of(self._layers)
        scratch = measured.scratch + measured.layer_scratch * blocks
        if plan.stages > 1:
            scratch += measured.slot * (plan.slots + 1) * blocks
        scratch -= sizes.in_step * (self._whole(replace(plan, piece=piece), blocks) - within)
        rows = plan.piece.rows * plan.micro_batches
        numbers: dict[str, float] = {
            "memory.weights": between * sizes.weight,
            "memory.optimizer": round(between * sizes.optimizer),
            "memory.inputs": 3 * 4.0 * rows * self.question.length,
            "memory.scratch": max(scratch, 0.0),
            "spilled": measured.spilled + measured.layer_spilled * blocks,
            "network": float(self.question.cores > 1),
            "instructions.all": measured.instructions + measured.layer_instructions * blocks,
        }
        return self._bench.memory(numbers)

    def _whole(self, plan: Plan, blocks: int) -> int:
        """Elements of a core in the step that was measured, of so many blocks: there nothing is
        sharded further, and stages share embedding and head among as few."""
        stages = STAGES[0] if plan.stages > 1 else 1
        fsdp = SHARDED if plan.piece.sharded else 1
        degrees, _ = _degrees(replace(plan, data=1, fsdp=fsdp, stages=stages))
        return used(self._of(degrees, False), blocks)

    def _shares_of(self, degrees: "Degrees", zero_1: bool) -> Sequence[Share]:
        return self._shares.of(_plan_of(degrees, zero_1).parallelism, degrees[-1].precision)

    def _held_and_used(self, degrees: "Degrees", zero_1: bool) -> tuple[int, int]:
        """Elements of a core between steps and in a step."""
        shares = self._of(degrees, zero_1)
        layers = _plan_of(degrees, zero_1).layers_of(self._layers)
        return held(shares, layers), used(shares, layers)

    def _exchanges(self, degrees: "Degrees", zero_1: bool) -> tuple[float, float, float]:
        """Times in ns of collectives of parameters: with FSDP what a block's take in a micro-batch
        beyond those that were measured, and the others'; and of all gradients, and ZeRO-1's
        weights, in a step."""
        plan = _plan_of(degrees, zero_1)
        blocks = plan.layers_of(self._layers)
        sizes = self._shares.sizes(plan.piece.precision)
        block = outside = gradients = 0.0
        for share in self._of(degrees, zero_1):
            if is_gathered(share):
                nbytes = share.used * plan.fsdp * sizes.compute
                time = self._gathering(plan, nbytes)
                time -= self._gathering(replace(plan, data=1, fsdp=SHARDED), nbytes)
                block, outside = (
                    (block + time, outside) if share.in_block else (block, outside + time)
                )
            gradients += sum(self._reductions(plan, share)) * (blocks if share.in_block else 1)
        return block, outside, gradients

    def _gathering(self, plan: Plan, nbytes: float) -> float:
        """The time in ns of FSDP's collectives of a parameter in a micro-batch."""
        ranks = self._ranks(plan, (FULLY_SHARDED,))
        gather, scatter = (
            self._bench.collective_ns(name, nbytes, ranks)
            for name in ("all_gather", "reduce_scatter")
        )
        return GATHERS_OF_A_PASS * gather + SCATTERS_OF_A_PASS * scatter

    def _reductions(self, plan: Plan, share: Share) -> Iterator[float]:
        """Times of the collectives that a parameter's gradient takes part in, in ns."""
        sizes = self._shares.sizes(plan.piece.precision)
        remaining = share.used
        if ZERO in share.axes and plan.data > 1:
            ranks = self._ranks(plan, (ZERO,))
            yield LAYOUT_NS * remaining
            yield self._bench.collective_ns("reduce_scatter", remaining * sizes.gradient, ranks)
            yield self._bench.collective_ns("all_gather", remaining * sizes.compute, ranks)
            remaining = share.held
        axes = tuple(
            axis
            for axis in ("data", FULLY_SHARDED, "expert", "context")
            if axis not in share.axes and self._sizes_of(plan)[axis] > 1
        )
        if axes:
            nbytes = remaining * sizes.gradient
            yield self._bench.collective_ns("all_reduce", nbytes, self._ranks(plan, axes))

    def _sizes_of(self, plan: Plan) -> dict[str, int]:
        names = ("stage", "data", "fsdp", "expert", "context", "model")
        degrees = (plan.stages, plan.data, plan.fsdp, plan.piece.expert, plan.piece.context)
        return dict(zip(names, (*degrees, plan.piece.tensor), strict=True))

    def _ranks(self, plan: Plan, axes: Sequence[str]) -> Sequence[int]:
        """A group of cores along axes of the mesh, as `Parallelism` orders them."""
        return group(tuple(self._sizes_of(plan).items()), tuple(axes))

    def estimate(self, predicted: Predicted, measured: Measured, price: float | None) -> Estimate:
        """The prediction as `neuronjax estimate` gives it, with its range and its price."""
        question, cores = self.question, self.question.cores
        flops = training_flops(self._config, question.batch, question.length)
        example = measured.example
        return replace(
            example,
            name=question.model,
            ranks=cores,
            mesh=predicted.plan.parallelism.fitted(self._config).axes,
            instances=question.machines,
            step_ns=predicted.seconds * 1e9,
            traits=replace(example.traits, ranks=cores, is_extrapolated=True),
            model_flops=flops / cores,
            memory=predicted.memory,
            memory_ranges=predicted.memory_ranges,
            tokens=question.batch * question.length,
            samples=question.batch,
            price=price_for(question.target, price, {}),
        )


Degrees = tuple[Any, ...]
"""Data, FSDP, stages and the piece: what parameters and their collectives depend on."""


def _degrees(plan: Plan) -> tuple[Degrees, bool]:
    piece = replace(plan.piece, rows=1, recompute="full")
    return (plan.data, plan.fsdp, plan.stages, piece), plan.zero_1


def _plan_of(degrees: Degrees, zero_1: bool) -> Plan:
    data, fsdp, stages, piece = degrees
    return Plan(
        piece=piece, data=data, fsdp=fsdp, stages=stages, micro_batches=stages,
        zero_1=zero_1,
    )  # fmt: skip


@functools.cache
def group(sizes: tuple[tuple[str, int], ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """The ranks of the first group of cores along some axes of a mesh, outermost axis first."""
    ids = np.arange(int(np.prod([size for _, size in sizes]))).reshape([size for _, size in sizes])
    picked = ids[tuple(slice(None) if axis in axes else 0 for axis, _ in sizes)]
    return tuple(map(int, np.ravel(picked)))


def kept_of_block(config: Any, plan: Plan, length: int) -> int:
    """Elements that a block keeps at least of a micro-batch for its backward pass: `full` its
    input, the others what products read and give, `none` also scores and their exponentials."""
    piece = plan.piece
    positions = piece.rows * length // piece.context
    if piece.recompute == "full":
        return positions * config.dim // piece.tensor
    heads = config.num_heads + config.num_kv_heads
    kept = positions * (2 * config.dim + heads * config.head_dim // piece.tensor)
    if getattr(config, "experts", None) is None:
        kept += 2 * positions * config.hidden_dim // piece.tensor
    if piece.recompute == "none" and piece.context == 1:
        kept += 2 * positions * length * config.num_heads // piece.tensor
    return kept
