"""Axes of every parameter of a vision transformer; models/sharding.py says what splits which."""

from models.layers.axes import BLOCK_AXES
from models.sharding import AxisTable

AXES: AxisTable = (
    *BLOCK_AXES,
    (r"patches\.kernel", ("height", "width", "channels", "dim")),
    (r"patches\.bias", ("residual",)),
    (r"(class_token|distillation_token|positions)", ("image", "tokens", "dim")),
    (r"(pooler|classifier|distilled_classifier)\.kernel", ("dim", "label")),
    (r"(pooler|classifier|distilled_classifier)\.bias", ("label",)),
)
