"""Tiny random models of any architecture, without transformers and without compiling anything."""

from collections.abc import Mapping
from typing import Any

import jax
import ml_dtypes
import numpy as np

from models import pretrained
from models.pretrained import Pretrained
from models.weights.fields import Fields

STDDEV = 0.2  # far larger than in training, so that every part of a model matters


def random_model(
    values: Mapping[str, Any], seed: int = 0, stddev: float = STDDEV, **changes: Any
) -> Pretrained:
    """The model of a config.json with these fields; `changes` are fields of its config."""
    architecture, config, fields = pretrained.describe_fields(Fields(values, "the test"))
    config = type(config)(**{**vars(config), **changes})
    graph, shapes = architecture.abstract(config)
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...], dtype: Any) -> jax.Array:
        # Vectors are mostly scales.
        values = stddev * rng.normal(size=shape) + (1 if len(shape) == 1 else 0)
        return jax.device_put(values.astype(ml_dtypes.bfloat16).astype(dtype))

    parameters = {name: draw(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
    return Pretrained(architecture, config, fields, graph, parameters)
