"""Gradients of a step whose blocks are shared out over the stages of a pipeline.

Everything here is done by one core, within the `jax.shard_map` region of a step. A stage keeps the
inputs of its chunks, and makes the rest again in the backward pass (Huang et al., "GPipe", 2019).
Cores of one stage take the same way through every tick, so that they may communicate on it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from launch.training.pipeline_schedule import IDLE, Passes, Phase, Schedule
from models.parallel.varying import vary

AXIS = "stage"
"""The mesh axis of stages."""


class Stages(NamedTuple):
    """The parts of a model's loss, of a core's parameters and the rows of a micro-batch.

    Parameters are a dictionary by paths, of which those of stacked blocks have the layers of one
    chunk along their first axis, `layers` of which count.
    """

    embed: Callable[[Any, Any], jax.Array]  # (parameters, rows) -> activations
    run: Callable[[Any, jax.Array, Any, int], jax.Array]  # (…, activations, rows, layers) -> same
    loss: Callable[[Any, jax.Array, Any], tuple[jax.Array, Any]]
    """(parameters, activations, rows) -> (what is minimised [], a tree of sums)."""


@dataclass(frozen=True)
class Role:
    """What kinds of virtual stages there are."""

    is_first: bool
    is_last: bool
    layers: int


class _Tick(NamedTuple):
    """What goes from one tick to the next."""

    inputs: jax.Array  # [slots, …], of chunks whose backward pass is to come
    arrived: jax.Array  # activations from the stage before
    returned: jax.Array  # their gradients, from the stage behind
    gradients: Any  # FP32 sums
    sums: Any  # of the last stage


class _Pass(NamedTuple):
    """What a stage does now; IDLE if nothing."""

    micro_batch: jax.Array
    chunk: jax.Array
    slot: jax.Array


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
        for phase in self.schedule.phases:
            tables = tuple(
                _table(passes, phase.ticks)
                for passes in (self.schedule.forward, self.schedule.backward)
            )
            state, _ = jax.lax.scan(partial(run.tick, phase), state, tables)
        return state.gradients, state.sums

    def micro_batches(self, rows: Any) -> Any:
        """Arrays [B, …] as [m, B/m, …]."""
        count = self.schedule.micro_batches
        return jax.tree.map(lambda x: x.reshape(count, len(x) // count, *x.shape[1:]), rows)

    def sums(self, stages: Stages, parameters: Mapping[str, Any], rows: Any) -> Any:
        """Sums of the tree of `loss` alone: forward passes."""
        run = _Run(self, stages, {}, parameters, rows)
        passes = self.schedule.forward
        busy = range(int(np.max(np.nonzero(passes.micro_batch != IDLE)[0])) + 1)
        state = run.start()
        carry = (state.arrived, state.sums)
        return jax.lax.scan(run.evaluate, carry, _table(passes, busy))[0][1]

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

    @property
    def roles(self) -> tuple[Role, ...]:
        """Of every virtual stage."""
        last = len(self.layers) - 1
        return tuple(
            Role(number == 0, number == last, layers) for number, layers in enumerate(self.layers)
        )


def _table(passes: Passes, ticks: range) -> _Pass:
    """What each stage does in some ticks, [ticks, p]."""
    tables = (passes.micro_batch, passes.chunk, passes.slot)
    return _Pass(*(jnp.asarray(table[ticks.start : ticks.stop]) for table in tables))


class _Run:
    """One step of a core."""

    def __init__(
        self, pipeline: Pipeline, stages: Stages, parameters: Any, fixed: Any, rows: Any
    ) -> None:
        self.pipeline, self.stages = pipeline, stages
        self.parameters, self.fixed, self.rows = parameters, fixed, rows
        self.stage = jax.lax.axis_index(AXIS)
        self.rounds = pipeline.schedule.rounds
        self.roles = tuple(dict.fromkeys(pipeline.roles))
        numbers = np.array([self.roles.index(role) for role in pipeline.roles], np.int32)
        self.role_of = numbers.reshape(self.rounds, -1)  # [v, p]

    def start(self) -> _Tick:
        """Before the first tick."""
        rows = self.rows_of(jnp.int32(0))
        own = {**self.chunk(self.fixed, jnp.int32(0)), **self.chunk(self.parameters, jnp.int32(0))}

        def whole(parameters: Any, rows: Any) -> tuple[jax.Array, Any]:
            x = self.own(self.stages.embed(parameters, rows))
            return x, self.stages.loss(parameters, x, rows)[1]

        shape, sums = jax.eval_shape(whole, own, rows)
        nothing = jnp.zeros(shape.shape, shape.dtype)
        return self.own(
            _Tick(
                inputs=jnp.zeros((self.pipeline.schedule.slots, *shape.shape), shape.dtype),
                arrived=nothing,
                returned=nothing,
                gradients=jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), self.parameters),
                sums=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), sums),
            )
        )

    def tick(self, phase: Phase, state: _Tick, tables: Any) -> tuple[_Tick, None]:
        """What a phase has of: forward pass, activations to the next stage, backward pass,
        gradients to the stage before."""
        forward, backward = jax.tree.map(lambda table: table[self.stage], tables)
        if phase.forward:
            state = state._replace(inputs=self.keep(state, forward))
            state = state._replace(arrived=_pass_on(self.forward(state, forward), 1))
        if phase.backward:
            gradients, returned, sums = self.backward(state, backward)
            returned = _pass_on(returned, -1)
            state = state._replace(gradients=gradients, returned=returned, sums=sums)
        return state, None

    def keep(self, state: _Tick, now: _Pass) -> jax.Array:
        """The inputs with what has arrived for a forward pass."""
        slot = jnp.maximum(now.slot, 0)
        old = jax.lax.dynamic_index_in_dim(state.inputs, slot, keepdims=False)
        value = jnp.where(now.slot == IDLE, old, state.arrived)
        return jax.lax.dynamic_update_index_in_dim(state.inputs, value, slot, 0)

    def forward(self, state: _Tick, now: _Pass) -> jax.Array:
        """What the next stage gets."""
        rows, learnt, fixed = self.given(now)

        def branch(role: Role) -> Callable[[jax.Array], jax.Array]:
            if role.is_last:  # its backward pass does it all
                return idle
            return lambda x: self.run(role, {**fixed, **learnt}, x, rows)

        def idle(x: jax.Array) -> jax.Array:
            return self.own(jnp.zeros_like(x))

        branches = [idle, *map(branch, self.roles)]
        output: jax.Array = jax.lax.switch(self.branch(now), branches, state.arrived)
        return output

    def backward(self, state: _Tick, now: _Pass) -> tuple[Any, jax.Array, Any]:
        """Sums of gradients, what the stage before gets, and sums of the loss."""
        x = jax.lax.dynamic_index_in_dim(state.inputs, jnp.maximum(now.slot, 0), keepdims=False)
        rows, learnt, fixed = self.given(now)

        def branch(role: Role) -> Callable[..., Any]:
            def output(learnt: Any, x: jax.Array) -> Any:
                return self.run(role, {**fixed, **learnt}, x, rows)

            def loss(learnt: Any, x: jax.Array) -> Any:
                return self.stages.loss({**fixed, **learnt}, output(learnt, x), rows)

            def run(gradients: Any, sums: Any, x: jax.Array, returned: jax.Array) -> Any:
                if role.is_last:
                    total, pull, terms = jax.vjp(loss, learnt, x, has_aux=True)
                    more, of_x = pull(jnp.ones_like(total))
                    sums = jax.tree.map(jnp.add, sums, terms)
                else:
                    _, pull = jax.vjp(output, learnt, x)
                    more, of_x = pull(returned)
                return self.own((self.added(gradients, more, now.chunk), of_x, sums))

            return run

        def idle(gradients: Any, sums: Any, x: jax.Array, returned: jax.Array) -> Any:
            return self.own((gradients, jnp.zeros_like(x), sums))

        branches = [idle, *map(branch, self.roles)]
        sums_and_gradient: tuple[Any, jax.Array, Any] = jax.lax.switch(
            self.branch(now), branches, state.gradients, state.sums, x, state.returned
        )
        return sums_and_gradient

    def evaluate(self, carry: tuple[jax.Array, Any], table: _Pass) -> tuple[Any, None]:
        """A tick of forward passes alone, of which the last stage's make the loss."""
        arrived, sums = carry
        now = jax.tree.map(lambda row: row[self.stage], table)
        rows, _, fixed = self.given(now)

        def branch(role: Role) -> Callable[..., Any]:
            def run(x: jax.Array, sums: Any) -> Any:
                x = self.run(role, fixed, x, rows)
                if role.is_last:
                    _, terms = self.stages.loss(fixed, x, rows)
                    sums = jax.tree.map(jnp.add, sums, terms)
                return self.own((x, sums))

            return run

        branches = [lambda x, sums: self.own((x, sums)), *map(branch, self.roles)]
        x, sums = jax.lax.switch(self.branch(now), branches, arrived, sums)
        return (_pass_on(x, 1), sums), None

    def run(self, role: Role, parameters: Any, x: jax.Array, rows: Any) -> jax.Array:
        """A chunk, all but the loss. Cores that have the same results have each its own of them:
        gradients that come back are partial sums."""
        if role.is_first:
            x = self.stages.embed(parameters, rows)
        output: jax.Array = self.own(self.stages.run(parameters, x, rows, role.layers))
        return output

    # Chunks of parameters, and rows

    def given(self, now: _Pass) -> tuple[Any, Any, Any]:
        """Rows, learnt parameters and fixed ones of a pass."""
        chunks = (self.chunk(tree, now.chunk) for tree in (self.parameters, self.fixed))
        return self.rows_of(now.micro_batch), *chunks

    def branch(self, now: _Pass) -> jax.Array:
        """0, or 1 + the number of the role."""
        role = jnp.asarray(self.role_of)[jnp.maximum(now.chunk, 0), self.stage]
        return jnp.where(now.micro_batch == IDLE, 0, 1 + role)

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

    def added(self, gradients: Any, more: Any, chunk: jax.Array) -> Any:
        """Sums of gradients with those of a chunk."""

        def add(path: str, total: jax.Array) -> jax.Array:
            own = more[path].astype(jnp.float32)
            if self.rounds == 1 or not is_stacked(path):
                return total + own
            own += self._part(total, chunk)
            start = jnp.maximum(chunk, 0) * len(own)
            return jax.lax.dynamic_update_slice_in_dim(total, own, start, axis=0)

        return {path: add(path, total) for path, total in gradients.items()}

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


def _pass_on(x: jax.Array, step: int) -> jax.Array:
    """What the stage `step` before has made; the first and the last are neighbours."""
    stages = jax.lax.axis_size(AXIS)
    return jax.lax.ppermute(x, AXIS, [(s, (s + step) % stages) for s in range(stages)])
