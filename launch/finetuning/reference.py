"""The model that preferences are measured against: the one that training began with.

With adapters it is the model without them; otherwise a copy that stays as it is, split over the
mesh in the same way, whose parameters stand under `reference.`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import jax
from flax import nnx

from launch.training.core_model import REFERENCE
from launch.training.objectives import Batch
from models.layers.low_rank import switch_adapters
from models.parameters import Parameters
from models.pretrained import Described

PREFIX = f"{REFERENCE}."
Result = TypeVar("Result")


def with_reference(model: Described) -> Described:
    """The model with a copy of itself."""
    architecture = model.architecture

    def build(config: Any, *, rngs: nnx.Rngs) -> nnx.Module:
        module: Any = architecture.model(config, rngs=rngs)
        setattr(module, REFERENCE, architecture.model(config, rngs=rngs))
        whole: nnx.Module = module
        return whole

    return model._replace(architecture=replace(architecture, model=build))


def add_copies(parameters: Parameters) -> Parameters:
    """The parameters of `with_reference` for a model that has these."""
    return {**parameters, **{PREFIX + name: value for name, value in parameters.items()}}


def without_copies(parameters: Mapping[str, Any]) -> Parameters:
    """The parameters of the model that was trained, without those of its reference."""
    return {name: value for name, value in parameters.items() if not name.startswith(PREFIX)}


def reference_answers(
    model: Any, batch: Batch, answer_of: Callable[[Any, Batch], Result]
) -> dict[str, Result]:
    """What the reference makes of the pairs of a batch; no gradient reaches it."""
    copy = getattr(model, REFERENCE, None)
    if copy is None:
        switch_adapters(model, False)
    answers = {
        name: answer_of(model if copy is None else copy, batch[name])
        for name in ("chosen", "rejected")
    }
    if copy is None:
        switch_adapters(model, True)
    return jax.lax.stop_gradient(answers)
