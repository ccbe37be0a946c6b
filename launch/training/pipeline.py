"""Gradients of a step whose blocks are shared out over the stages of a pipeline.

Everything here is done by one core, within the `jax.shard_map` region of a step. A stage keeps what
the backward passes of its chunks need, which is less with recomputation: of a block whose results
are all made again its input (Huang et al., "GPipe", 2019).

All stages run the same code, as the Neuron compiler has no branches: a stage that has nothing to do
in a tick works on what is there, which takes no time that others do not take, and the result counts
for nothing. Embedding and head would so cost every stage as much as the one that needs them;
instead each stage has a part of the vocabulary, and works on the micro-batch that enters the first
virtual stage, or leaves the last one. Where the number of stages does not divide the vocabulary,
all stages do all of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from launch.training.pipeline_schedule import IDLE, Cycle, Passes, Phase, Schedule
from launch.training.residuals import SplitPass, split_pass
from models.varying import vary

AXIS = "stage"
"""The mesh axis of stages."""


class Stages(NamedTuple):
    """The parts of a model's loss, of a core's parameters and the rows of a micro-batch.

    Parameters are a dictionary by paths, of which those of stacked blocks have the layers of one
    chunk along their first axis; `run` alone learns by them, and `embed` and `loss` by the others.
    Where they are shared, all stages call `embed` and `loss` with the same rows and activations,
    and get the same results.
    """

    embed: Callable[[Any, Any], jax.Array]  # (parameters, rows) -> activations
    run: Callable[[Any, jax.Array, Any, "Place"], jax.Array]
    """(parameters, activations, rows, which layers) -> activations."""
    loss: Callable[[Any, jax.Array, Any], tuple[jax.Array, Any]]
    """(parameters, activations, rows) -> (what is minimised [], a tree of sums)."""
    shared: bool


class Place(NamedTuple):
    """The layers of a chunk."""

    first: jax.Array  # number of the first one in the model, int32 []
    layers: jax.Array | None  # how many of the parameters' layers count, int32 []; None: all


class _Tick(NamedTuple):
    """The state of a stage between two ticks."""

    kept: list[jax.Array]  # [slots + 1, …], of chunks whose backward pass is to come
    arrived: jax.Array  # activations from the stage before
    returned: jax.Array  # their gradients, from the stage behind
    gradients: Any  # FP32 sums
    sums: Any  # of micro-batches that have left


class _Pass(NamedTuple):
    """The micro-batch, chunk and slot that a stage works on in a tick, or IDLE."""

    micro_batch: jax.Array
    chunk: jax.Array
    slot: jax.Array

    def of(self, stage: Any) -> "_Pass":
        """The pass of one stage, taken from those of all stages."""
        return _Pass(*(table[stage] for table in self))

    @property
    def busy(self) -> jax.Array:
        """Whether there is anything to do."""
        return self.micro_batch != IDLE


@dataclass(frozen=True)
class Pipeline:
    """A schedule, and the number of layers of each virtual stage."""

    schedule: Schedule
    layers: tuple[int, ...]  # by virtual stage
    axes: tuple[str, ...]  # the manual axes of the region

    def gradients(
        self,
        stages: Stages,
        parameters: Mapping[str, Any],
        rows: Any,
        fixed: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], Any]:
        """(gradients, FP32 sums over micro-batches of a core's own; sums of the tree of `loss`).

        Stacks of parameters have the layers of all chunks of a stage, each padded to the longest;
        `fixed` ones have no gradients. Rows are a tree of arrays [m, …]. The sums are those of the
        last stage, and 0 at others.
        """
        run = _Run(self, stages, parameters, fixed or {}, rows)
        state = run.start()
        for cycle in self.schedule.cycles:
            tables = [self._tables(cycle.rows(phase)) for phase in cycle.phases]
            if cycle.times == 1:
                state, _ = run.cycle(cycle, state, jax.tree.map(lambda table: table[0], tables))
            else:
                state, _ = jax.lax.scan(partial(run.cycle, cycle), state, tables)
        return state.gradients, state.sums

    @property
    def rows_of_stage(self) -> int:
        """Layers in a stage's part of a stack."""
        return self.schedule.rounds * max(self.layers)

    def _tables(self, ticks: np.ndarray) -> tuple[_Pass, _Pass]:
        """Forward and backward passes of every stage in some ticks, [..., p]."""
        return _table(self.schedule.forward, ticks), _table(self.schedule.backward, ticks)

    def micro_batches(self, rows: Any) -> Any:
        """Arrays [B, …] as [m, B/m, …]."""
        count = self.schedule.micro_batches
        return jax.tree.map(lambda x: x.reshape(count, len(x) // count, *x.shape[1:]), rows)

    def sums(self, stages: Stages, parameters: Mapping[str, Any], rows: Any) -> Any:
        """Sums of the tree of `loss` alone: forward passes."""
        run = _Run(self, stages, {}, parameters, rows)
        passes = self.schedule.forward
        busy = np.arange(np.max(np.nonzero(passes.micro_batch != IDLE)[0]) + 1)
        return jax.lax.scan(run.evaluate, run.start_sums(), _table(passes, busy))[0][1]

    @property
    def order(self) -> tuple[int | None, ...]:
        """The block of each row of a stack, in the order of stages and their chunks; None where a
        chunk has fewer than the longest."""
        first = np.cumsum((0, *self.layers))
        virtual = (
            chunk * self.schedule.stages + stage
            for stage in range(self.schedule.stages)
            for chunk in range(self.schedule.rounds)
        )
        return tuple(
            int(first[number]) + place if place < self.layers[number] else None
            for number in virtual
            for place in range(max(self.layers))
        )


def _table(passes: Passes, ticks: np.ndarray) -> _Pass:
    """Looks up the passes of all p stages in some ticks, as arrays [..., p]."""
    tables = (passes.micro_batch, passes.chunk, passes.slot)
    return _Pass(*(jnp.asarray(table[ticks]) for table in tables))


class _Run:
    """A step of the pipeline on one core."""

    def __init__(
        self, pipeline: Pipeline, stages: Stages, parameters: Any, fixed: Any, rows: Any
    ) -> None:
        self.pipeline, self.stages = pipeline, stages
        self.parameters, self.fixed, self.rows = parameters, fixed, rows
        self.stage = jax.lax.axis_index(AXIS)
        self.last = pipeline.schedule.stages - 1
        self.rounds = pipeline.schedule.rounds

    def start(self) -> _Tick:
        """The state before the first tick."""
        nothing, sums = self.start_sums()
        slots = self.pipeline.schedule.slots + 1
        return _Tick(
            kept=[
                vary(jnp.zeros((slots, *kept.shape), kept.dtype), kept.manual_axis_type.varying)
                for kept in self.split.kept
            ],
            arrived=nothing,
            returned=nothing,
            gradients=self.own(
                jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), self.parameters)
            ),
            sums=sums,
        )

    def start_sums(self) -> tuple[jax.Array, Any]:
        """No activations, and sums over no micro-batches."""
        own = {**self.chunk(self.fixed, jnp.int32(0)), **self.chunk(self.parameters, jnp.int32(0))}

        def whole(parameters: Any, rows: Any) -> tuple[jax.Array, Any]:
            x = self.own(self.stages.embed(parameters, rows))
            return x, self.stages.loss(parameters, x, rows)[1]

        shape, sums = jax.eval_shape(whole, own, self.rows_of(jnp.int32(0)))
        zeros: tuple[jax.Array, Any] = self.own(
            jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shape, sums))
        )
        return zeros

    @cached_property
    def split(self) -> SplitPass:
        """The forward and the backward pass of a chunk."""
        now = vary(_Pass(*(jnp.int32(0) for _ in _Pass._fields)), (AXIS,))
        x, _ = self.start_sums()
        return split_pass(self.run_weights, *self.weights_of(now), x, now)

    def weights_of(self, now: _Pass) -> tuple[dict[str, Any], dict[str, Any]]:
        """Learnt and fixed parameters of the blocks of a chunk."""
        trees = (self.chunk(tree, now.chunk) for tree in (self.parameters, self.fixed))
        learnt, fixed = ({p: w for p, w in tree.items() if is_stacked(p)} for tree in trees)
        return learnt, fixed

    def run_weights(self, learnt: Any, fixed: Any, x: jax.Array, now: _Pass) -> jax.Array:
        """A chunk with these parameters of its blocks."""
        return self.run({**self.fixed, **self.parameters, **fixed, **learnt}, x, now)

    def cycle(
        self, cycle: Cycle, state: _Tick, tables: list[tuple[_Pass, _Pass]]
    ) -> tuple[_Tick, None]:
        """The phases of a cycle, one after the other."""
        for phase, passes in zip(cycle.phases, tables, strict=True):
            state, _ = jax.lax.scan(partial(self.tick, phase), state, passes)
        return state, None

    def tick(self, phase: Phase, state: _Tick, tables: tuple[_Pass, _Pass]) -> tuple[_Tick, None]:
        """Runs a forward pass, a backward pass or both, as the phase says, and passes activations
        on to the next stage and gradients back to the one before."""
        forward, backward = tables
        if phase.forward:
            now, x = forward.of(self.stage), self.input(state.arrived, forward)
            y, kept = self.split.forward(*self.weights_of(now), x, now)
            state = state._replace(kept=_keep(state.kept, kept, now), arrived=_pass_on(y, 1))
        if phase.backward:
            state = self.backward(phase, state, backward)
        return state, None

    def input(self, arrived: jax.Array, passes: _Pass) -> jax.Array:
        """The input of a stage's chunk: what has arrived, or what enters the pipeline, embedded."""
        rows = self.rows_of(passes.of(0).micro_batch)
        embedded = self.stages.embed({**self.fixed, **self.parameters}, rows)
        return jnp.where(self.enters(passes.of(self.stage)), self.own(embedded), arrived)

    def backward(self, phase: Phase, state: _Tick, passes: _Pass) -> _Tick:
        """Adds the gradients of a chunk, and those of embedding and head."""
        now, sums = passes.of(self.stage), state.sums
        slot = jnp.maximum(now.slot, 0)
        kept = [jax.lax.dynamic_index_in_dim(x, slot, keepdims=False) for x in state.kept]
        y, pull = self.split.backward(kept, *self.weights_of(now), state.arrived, now)
        of_y, gradients = state.returned, state.gradients
        if phase.head:
            of_head, of_output, sums = self.head(y, passes, sums)
            of_y = jnp.where(self.leaves(now), of_output, of_y)
            gradients = _add_gradients(gradients, of_head)
        of_blocks, of_x = pull(of_y)
        gradients = _add_gradients(gradients, self.embedding(of_x, passes))
        gradients |= self.added(gradients, of_blocks, now)
        return state._replace(gradients=gradients, returned=_pass_on(of_x, -1), sums=sums)

    def head(self, y: jax.Array, passes: _Pass, sums: Any) -> tuple[Any, jax.Array, Any]:
        """Gradients of what is in no block, and of the last virtual stage's y, by the loss of
        what leaves the pipeline; and sums of the loss."""
        outside, leaves = self.outside(), self.leaves(passes.of(self.stage))
        counts = self.is_output(passes.of(self.last)) if self.stages.shared else leaves

        def loss(outside: Any, y: jax.Array) -> tuple[jax.Array, Any]:
            parameters = {**self.fixed, **self.parameters, **outside}
            total, terms = self.loss_of(parameters, y, passes)
            return jnp.where(counts, total, 0), terms

        total, pull, terms = jax.vjp(loss, outside, y, has_aux=True)
        of_outside, of_y = pull(jnp.ones_like(total))
        return of_outside, of_y, self.added_terms(sums, terms, leaves)

    def loss_of(self, parameters: Any, y: jax.Array, passes: _Pass) -> tuple[jax.Array, Any]:
        """The loss of what leaves the last virtual stage."""
        if self.stages.shared:
            leaves = self.leaves(passes.of(self.stage))
            y = self.own(jax.lax.psum(jnp.where(leaves, y, 0), AXIS))
        return self.stages.loss(parameters, y, self.rows_of(passes.of(self.last).micro_batch))

    def embedding(self, of_x: jax.Array, passes: _Pass) -> Any:
        """Gradients of what is in no block, of those of the first virtual stage's input."""
        rows = self.rows_of(passes.of(0).micro_batch)

        def embed(outside: Any) -> jax.Array:
            return self.own(self.stages.embed({**self.fixed, **self.parameters, **outside}, rows))

        _, pull = jax.vjp(embed, self.outside())
        return pull(jnp.where(self.enters(passes.of(self.stage)), of_x, 0))[0]

    def evaluate(self, carry: tuple[jax.Array, Any], passes: _Pass) -> tuple[Any, None]:
        """A tick of forward passes alone, and the loss of what they make."""
        arrived, sums = carry
        now = passes.of(self.stage)
        x = self.run_weights(*self.weights_of(now), self.input(arrived, passes), now)
        _, terms = self.loss_of(self.fixed, x, passes)
        return (_pass_on(x, 1), self.added_terms(sums, terms, self.leaves(now))), None

    def run(self, parameters: Any, x: jax.Array, now: _Pass) -> jax.Array:
        """A chunk. Cores that have the same results have each its own of them: gradients that come
        back are partial sums."""
        counts = np.array(self.pipeline.layers, np.int32)
        first = self._of_chunk(np.cumsum(counts) - counts, now)
        count = self._of_chunk(counts, now) if len(set(self.pipeline.layers)) > 1 else None
        rows = self.rows_of(now.micro_batch)
        output: jax.Array = self.own(self.stages.run(parameters, x, rows, Place(first, count)))
        return output

    def _of_chunk(self, numbers: np.ndarray, now: _Pass) -> jax.Array:
        """The entry, for this stage in a pass, of a table by virtual stages."""
        table = jnp.asarray(numbers.astype(np.int32).reshape(self.rounds, -1))
        return table[jnp.maximum(now.chunk, 0), self.stage]

    # Passes

    def enters(self, now: _Pass) -> jax.Array:
        """Whether this stage's pass is one of the first virtual stage."""
        return now.busy & (self.stage == 0) & (now.chunk == 0)

    def leaves(self, now: _Pass) -> jax.Array:
        """Whether this stage's pass is one of the last virtual stage."""
        return (self.stage == self.last) & self.is_output(now)

    def is_output(self, last: _Pass) -> jax.Array:
        """Whether a pass of the last stage is one of the last virtual stage."""
        return last.busy & (last.chunk == self.rounds - 1)

    # Chunks of parameters, rows, and sums

    def outside(self) -> dict[str, Any]:
        """The learnt parameters that belong to no block."""
        return {path: weight for path, weight in self.parameters.items() if not is_stacked(path)}

    def rows_of(self, micro_batch: jax.Array) -> Any:
        number = jnp.maximum(micro_batch, 0)
        return jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, number, keepdims=False), self.rows
        )

    def chunk(self, parameters: Any, number: jax.Array) -> dict[str, Any]:
        """The parameters that a chunk uses."""
        if self.rounds == 1:
            return dict(parameters)
        return {
            path: self._part(weight, number) if is_stacked(path) else weight
            for path, weight in parameters.items()
        }

    def added(self, gradients: Any, more: Any, now: _Pass) -> dict[str, Any]:
        """Sums of gradients of blocks with those of a chunk."""

        def add(total: jax.Array, own: jax.Array) -> jax.Array:
            own = jnp.where(now.busy, own.astype(jnp.float32), 0)
            if self.rounds == 1:
                return total + own
            own += self._part(total, now.chunk)
            start = jnp.maximum(now.chunk, 0) * len(own)
            return jax.lax.dynamic_update_slice_in_dim(total, own, start, axis=0)

        return {path: add(gradients[path], own) for path, own in more.items()}

    def added_terms(self, sums: Any, terms: Any, counts: jax.Array) -> Any:
        """Sums of the loss with those of a micro-batch, if it counts."""
        return self.own(
            jax.tree.map(lambda total, own: total + jnp.where(counts, own, 0), sums, terms)
        )

    def _part(self, stack: jax.Array, chunk: jax.Array) -> jax.Array:
        length = len(stack) // self.rounds
        start = jnp.maximum(chunk, 0) * length
        return jax.lax.dynamic_slice_in_dim(stack, start, length, axis=0)

    def own(self, tree: Any) -> Any:
        """Values that every core has its own of, as a loop wants them from its first round on."""
        return vary(tree, self.pipeline.axes)


def is_stacked(path: str) -> bool:
    """Whether a parameter is that of all blocks, with layers along its first axis."""
    return ".*." in path


def _add_gradients(gradients: Any, more: Any) -> dict[str, Any]:
    """Sums of gradients with those of some parameters."""
    sums = {path: gradients[path] + own.astype(jnp.float32) for path, own in more.items()}
    return {**gradients, **sums}


def _keep(slots: list[jax.Array], kept: list[jax.Array], now: _Pass) -> list[jax.Array]:
    """The slots with what a forward pass keeps; the last one is of stages with nothing to do."""
    return [
        jax.lax.dynamic_update_index_in_dim(own, x, jnp.where(now.busy, now.slot, len(own) - 1), 0)
        for own, x in zip(slots, kept, strict=True)
    ]


def _pass_on(x: jax.Array, step: int) -> jax.Array:
    """Sends an array `step` stages on, and returns the one that has come; the first stage and the
    last are neighbours."""
    stages = jax.lax.axis_size(AXIS)
    return jax.lax.ppermute(x, AXIS, [(s, (s + step) % stages) for s in range(stages)])
