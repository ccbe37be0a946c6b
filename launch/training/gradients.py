"""The part of a step that each core does for itself: gradients of its rows, added up over cores."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from launch.training.accumulation import Part, accumulate
from launch.training.clipping import global_norm
from launch.training.core_model import CoreModel
from launch.training.layout import Layout
from launch.training.objectives import Batch, Loss, Objective
from launch.training.pipeline import AXIS as STAGE
from launch.training.pipeline import Pipeline
from launch.training.precision import Precision
from launch.training.router_losses import PATH as ROUTER_LOSSES
from launch.training.router_losses import RouterLosses
from launch.training.stages import ModelStages
from models.hashed_random import HASHED
from models.parameters import Parameters, statistics
from models.varying import vary, varying_axes

_WHOLE = PartitionSpec()


class Gradients(NamedTuple):
    """The gradients of the loss, which is a mean over what counts."""

    gradients: Parameters  # of what is trained
    norm: jax.Array  # FP32 []
    loss: Loss
    statistics: Parameters  # running statistics, moved
    amax: Parameters  # largest magnitudes, by path of their histories


@dataclass(frozen=True)
class CoreStep:
    """Functions of whole arrays, which run as a region of cores (see Layout)."""

    model: CoreModel
    objective: Objective
    precision: Precision
    learnt: frozenset[str]  # paths of what is trained
    running: frozenset[str]  # paths of running statistics
    histories: frozenset[str]  # paths of histories of magnitudes
    batch_specs: Any
    micro_batches: int
    seed: int
    pipeline: Pipeline | None = None
    routers: RouterLosses | None = None

    @property
    def layout(self) -> Layout:
        """Who holds what."""
        return self.model.layout

    def gradients(
        self, parameters: Parameters, scaling: Parameters, batch: Batch, step: jax.Array
    ) -> Gradients:
        """Gradients and loss of a batch."""
        specs = self._specs()
        results = Gradients(
            {path: spec for path, spec in specs.items() if path in self.learnt},
            _WHOLE,
            Loss(_WHOLE, _WHOLE, _WHOLE),
            dict.fromkeys(self.running, _WHOLE),
            dict.fromkeys(self.histories, _WHOLE),
        )
        arguments = (specs, _WHOLE, self._batch_specs(), _WHOLE)
        return self.layout.region(self._gradients, arguments, results)(
            parameters, scaling, batch, step
        )

    def losses(self, parameters: Parameters, scaling: Parameters, batch: Batch) -> Loss:
        """The sums of a batch in evaluation."""

        def of_core(parameters: Parameters, scaling: Parameters, batch: Batch) -> Loss:
            held = self._for_step(parameters) | self._own(scaling)
            batch = self._own_positions(batch)
            if self.pipeline is not None:
                rows = self.pipeline.micro_batches((batch, None))
                loss = self.pipeline.sums(self._stages.parts(), held, rows)
                return self._over_cores(_over_stages(loss))
            return self._over_cores(self.objective(self.model(held), batch, None))

        arguments = (self._specs(), _WHOLE, self._batch_specs())
        results = Loss(_WHOLE, _WHOLE, _WHOLE)
        return self.layout.region(of_core, arguments, results)(parameters, scaling, batch)

    def _gradients(
        self, parameters: Parameters, scaling: Parameters, batch: Batch, step: jax.Array
    ) -> Gradients:
        """The gradients of one core's parts of everything."""
        held = self._for_step(parameters)
        learning = {path: weight for path, weight in held.items() if path in self.learnt}
        learning |= self._own(scaling)
        if self.routers is not None:
            rows_of_stack = 1 if self.pipeline is None else self.pipeline.rows_of_stage
            learning |= self._own(self.routers.learning(rows_of_stack))

        def loss_of(
            learning: Parameters, batch: Batch, keys: jax.Array
        ) -> tuple[jax.Array, tuple[Loss, Parameters]]:
            module = self.model({**held, **learning})
            if self.routers is not None:
                self.routers.charge(module, learning, batch, self.model.position_axes)
            loss = self.objective(module, batch, keys)
            return loss.total, (loss, statistics(module))

        def part_in_pipeline(part: tuple[Batch, jax.Array]) -> Part:
            assert self.pipeline is not None
            rows, stages = self.pipeline.micro_batches(part), self._stages.parts()
            gradients, loss = self.pipeline.gradients(stages, learning, rows, fixed=held)
            routers = _take_gradients(gradients, ROUTER_LOSSES)
            gradients = self.precision.accumulated(gradients)
            return Part((gradients, (_over_stages(loss), {}), routers), {})

        def part_of(part: tuple[Batch, jax.Array]) -> Part:
            if self.pipeline is not None:
                return part_in_pipeline(part)
            (_, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(learning, *part)
            amax = _take_gradients(gradients, *self.histories)
            routers = _take_gradients(gradients, ROUTER_LOSSES)
            return Part((self.precision.accumulated(gradients), others, routers), amax)

        rows = (self._own_positions(batch), self._keys(step, rows_of(batch)))
        sums, amax = accumulate(part_of, rows, self.micro_batches, self.layout.manual)
        gradients, (loss, statistics_sums), routers = sums
        loss = self._over_cores(loss)
        if self.routers is not None:
            charged = jnp.sum(routers[ROUTER_LOSSES], axis=0)
            loss = self.routers.added(loss, self._sum(charged))
        gradients = self.layout.reduced(gradients)
        gradients = jax.tree.map(lambda g: g / loss.weight, gradients)
        return Gradients(
            gradients,
            global_norm(gradients),
            loss,
            {
                path: self._mean(total / self.micro_batches).astype(parameters[path].dtype)
                for path, total in statistics_sums.items()
            },
            {path: self._largest(magnitude) for path, magnitude in amax.items()},
        )

    @property
    def _stages(self) -> ModelStages:
        return ModelStages(self.model, self.objective, self.routers)

    def _own_positions(self, batch: Batch) -> Batch:
        context = self.model.context
        return batch if context is None else context.own(batch)

    def _for_step(self, parameters: Parameters) -> Parameters:
        """What layers get: rounded before it is gathered."""
        weights = {path: value for path, value in parameters.items() if path not in self.running}
        return self.layout.for_step({**parameters, **self.precision.rounded(weights)})

    def _own(self, scaling: Parameters) -> Parameters:
        owned: Parameters = vary(scaling, self.layout.manual)
        return owned

    def _over_cores(self, loss: Loss) -> Loss:
        """The sums over cores of what each core's rows and positions give."""
        rows = self.layout.rows
        others = tuple(axis for axis in self.layout.manual if axis not in rows)

        def over_cores(x: jax.Array) -> jax.Array:
            x = vary(x.astype(jnp.float32), rows)
            x = jax.lax.psum(x, rows) if rows else x
            # Cores of a group that share a row have all the same.
            alike = tuple(axis for axis in others if axis in varying_axes(x))
            return jax.lax.pmean(x, alike) if alike else x

        return jax.tree.map(over_cores, loss)

    def _sum(self, x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, self.layout.manual) if self.layout.manual else x

    def _mean(self, x: jax.Array) -> jax.Array:
        return jax.lax.pmean(x, self.layout.manual) if self.layout.manual else x

    def _largest(self, x: jax.Array) -> jax.Array:
        return jax.lax.pmax(x, self.layout.manual) if self.layout.manual else x

    def _keys(self, step: jax.Array, rows: int) -> jax.Array:
        """The random keys [rows] of this core's rows, by their places in the global batch."""
        axes = tuple(axis for axis in self.layout.rows if axis != "context")
        first = jax.lax.axis_index(axes) * rows if axes else 0
        key = jax.random.fold_in(jax.random.key(self.seed, impl=HASHED), step)
        return jax.vmap(partial(jax.random.fold_in, key))(first + jnp.arange(rows))

    def _specs(self) -> dict[str, PartitionSpec]:
        layout = self.layout
        return {path: layout.region_spec(spec) for path, spec in layout.specs.items()}

    def _batch_specs(self) -> Any:
        return jax.tree.map(self.layout.region_spec, self.batch_specs)


def _take_gradients(gradients: Parameters, *paths: str) -> Parameters:
    """The gradients of some paths, if there are any, which are taken out of the others."""
    return {path: gradients.pop(path) for path in paths if path in gradients}


def _over_stages(loss: Loss) -> Loss:
    """What the last stage of a pipeline has, for all."""
    summed: Loss = jax.lax.psum(loss, STAGE)
    return summed


def rows_of(batch: Batch) -> int:
    """How many rows a batch has."""
    return int(jax.tree.leaves(batch)[0].shape[0])
