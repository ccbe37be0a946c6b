"""The functions of training on a whole mesh, before they are compiled."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from launch.training.clipping import clip_by_global_norm
from launch.training.gradients import CoreStep
from launch.training.objectives import Batch, Loss
from launch.training.precision import Precision
from launch.training.state import TrainState
from models.layers.fp8 import next_history
from models.parameters import AxisNames, Parameters


@dataclass(frozen=True, eq=False, kw_only=True)
class StepFunctions:
    """The functions that give a run's first state, each next state, and the loss.

    Attributes:
      draw: makes the first values of all variables, stacked where a step has stacks.
      parameters, histories: the shapes of what a state holds, by path.
      clip_norm: the largest global norm of the gradient; None = any.
      ema_decay: of a moving average of the parameters; None = there is none.
    """

    core: CoreStep
    precision: Precision
    axes: AxisNames
    optimizer: optax.GradientTransformation
    draw: Callable[[], Parameters]
    parameters: Parameters
    histories: Parameters
    clip_norm: float | None
    ema_decay: float | None

    def init(self) -> TrainState:
        """The first state, of drawn parameters."""
        drawn = self.draw()
        return self.start({path: drawn[path] for path in self.parameters})

    def start(self, parameters: Parameters) -> TrainState:
        """The first state, of parameters that are there already."""
        parameters = {path: self._round(path, value) for path, value in parameters.items()}
        return TrainState(
            parameters,
            self.optimizer.init(self._learnt(parameters)),
            jnp.int32(0),
            {path: jnp.zeros(leaf.shape, leaf.dtype) for path, leaf in self.histories.items()},
            None if self.ema_decay is None else _as_float32(parameters),
        )

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        """The next state, and what is reported of the step."""
        weights = self.precision.quantized(state.parameters, self.axes)
        computed = self.core.gradients(weights, state.scaling, batch, state.step)
        learning = self._learnt(state.parameters)
        gradients = clip_by_global_norm(computed.gradients, computed.norm, self.clip_norm)
        gradients = {path: g.astype(learning[path].dtype) for path, g in gradients.items()}
        updates, moments = self.optimizer.update(gradients, state.optimizer, learning)
        changed = {**optax.apply_updates(learning, updates), **computed.statistics}
        new = {**state.parameters, **changed}
        scaling = {
            path: next_history(state.scaling[path], computed.amax[path]) for path in self.histories
        }
        loss = computed.loss
        reported = {name: total / loss.weight for name, total in loss.metrics.items()}
        reported |= {"loss": loss.total / loss.weight, "grad_norm": computed.norm}
        average = self._average(state.average, new)
        return TrainState(new, moments, state.step + 1, scaling, average), reported

    def evaluate(self, state: TrainState, batch: Batch) -> Loss:
        """Sums over a batch that nothing is learnt from."""
        weights = self.precision.quantized(state.evaluated, self.axes)
        return self.core.losses(weights, state.scaling, batch)

    def _learnt(self, parameters: Parameters) -> Parameters:
        return {path: value for path, value in parameters.items() if path in self.core.learnt}

    def _round(self, path: str, value: jax.Array) -> jax.Array:
        """What is never changed needs no more digits than layers compute with."""
        is_changed = path in self.core.learnt or path in self.core.running
        return value if is_changed else value.astype(self.precision.compute_dtype)

    def _average(self, average: Parameters | None, parameters: Parameters) -> Parameters | None:
        """The average, moved towards the parameters."""
        if self.ema_decay is None:
            return None
        new = _as_float32(parameters)
        following: Parameters = optax.incremental_update(new, average, 1 - self.ema_decay)
        return following


def _as_float32(parameters: Parameters) -> Parameters:
    return {path: jnp.array(leaf, jnp.float32, copy=True) for path, leaf in parameters.items()}
