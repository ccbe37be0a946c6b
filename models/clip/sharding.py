"""Axes of every CLIP parameter; models/sharding.py says which mesh axis splits which."""

from models.layers.axes import BLOCK_AXES
from models.sharding import AxisTable

AXES: AxisTable = (
    *BLOCK_AXES,
    (r"text\.embedding\.table", ("vocab", "dim")),
    (r"(text|vision)\.positions", ("tokens", "dim")),
    (r"vision\.class_token", ("residual",)),
    (r"vision\.patches\.kernel", ("height", "width", "channels", "dim")),
    (r"(text|vision)_projection\.kernel", ("dim", "projection")),
    (r"logit_scale", ()),
)
