"""What a parameter is, by its path and the names of its axes: what optimizers and formats ask."""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from launch.errors import ModelError
from models.parameters import AxisNames
from models.sharding import axis_names


class Kind(Enum):
    """What a parameter does."""

    MATRIX = "matrix"  # multiplies activations: kernels of linear maps and convolutions
    EMBEDDING = "embedding"  # vectors that are looked up or added: tokens, positions, the head
    SCALE = "scale"  # of a norm, and statistics
    BIAS = "bias"
    CONSTANT = "constant"  # stored with the weights, but not learnt


KINDS: Mapping[str, Kind] = {
    r"(.*_)?bias|sinks|layer_scores": Kind.BIAS,
    r"(layer_|logit_|attention_|mlp_)?scale|mean|variance": Kind.SCALE,
    r"table|(mid_)?positions|(class|distillation)_token|detection_tokens": Kind.EMBEDDING,
    r"sinusoids": Kind.CONSTANT,
    r"kernel|router|experts_(gate|up|down)|a|b": Kind.MATRIX,  # a and b are an adapter's
}
"""Regular expression that matches the last part of a path -> kind."""

_BATCH_AXES = frozenset({"experts", "layers"})
"""Axes of a parameter that number matrices."""


def kind_of(path: str) -> Kind:
    """The kind of the parameter at a path such as `blocks.0.mlp.up.kernel`.

    Raises ModelError if no row of KINDS matches.
    """
    name = path.rpartition(".")[-1]
    for pattern, kind in KINDS.items():
        if re.fullmatch(pattern, name):
            return kind
    raise ModelError(
        f"no row of KINDS in {__name__} says what the parameter {path} is: its last part "
        f"{name!r} matches none of {list(KINDS)}. Add a row."
    )


def kinds_of(parameters: Mapping[str, Any]) -> dict[str, Kind]:
    """The kind of every parameter. Raises ModelError as `kind_of` does."""
    return {path: kind_of(path) for path in parameters}


def matrix_axes(path: str, axes: AxisNames) -> tuple[Sequence[int], Sequence[int]]:
    """The axes of a MATRIX that are contracted with activations, and those of the result.

    A result of heads has two; convolutions contract all axes but the last. Axes of neither number
    matrices, such as experts.
    """
    names = axis_names(path, axes)
    results = 2 if names[-1] == "head_dim" else 1
    contracted = range(len(names) - results)
    return (
        tuple(axis for axis in contracted if names[axis] not in _BATCH_AXES),
        tuple(range(len(names) - results, len(names))),
    )
