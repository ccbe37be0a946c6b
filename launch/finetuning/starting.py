"""What fine-tuning begins with: the weights of a checkpoint, and random ones for what is new."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import jax

from models.parameters import Parameters, split
from models.pretrained import Described


def random_parameters(
    model: Described, names: Collection[str], seed: int, shardings: Mapping[str, Any]
) -> Parameters:
    """Those of the model's parameters, as at the start of a training, and nothing else."""
    wanted = sorted(names)

    @partial(jax.jit, out_shardings={name: shardings[name] for name in wanted})
    def draw() -> Parameters:
        _, parameters = split(model.architecture.build(model.config, seed))
        return {name: parameters[name] for name in wanted}

    drawn: Parameters = draw()
    return drawn
