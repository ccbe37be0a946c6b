"""Directories of random models. Weights are numpy's: initialising a model compiles a program for
every shape that it has, which takes longer than what the tests look at."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from models import pretrained
from models.parameters import Parameters
from models.weights.fields import Fields

SPREAD = 4.0
"""Of a layer's results, if its inputs spread by 1: tokens and classes must not come out alike."""


def write_model(directory: Path, name: str, config: dict[str, Any]) -> Path:
    """The directory of a model of architecture `name`."""
    fields = Fields({**config, "architectures": [name]}, "the test")
    architecture, described, _ = pretrained.describe_fields(fields)
    if architecture.library == "diffusers":
        fields = Fields({**config, "_class_name": name}, "the test")
    graph, shapes = architecture.abstract(described)
    model = pretrained.Pretrained(architecture, described, fields, graph, random(shapes))
    pretrained.save(directory, model)
    return directory


def random(shapes: Parameters) -> Parameters:
    """Weights of those shapes and types: scales are 1."""
    rng = np.random.default_rng(0)

    def make(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name.endswith("scale"):
            return np.ones(shape)
        return rng.normal(0, SPREAD / math.sqrt(math.prod(shape[:-1]) or 1), shape)

    return {name: make(name, each.shape).astype(each.dtype) for name, each in shapes.items()}
