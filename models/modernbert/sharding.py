"""Axes of every parameter of ModernBERT; models/sharding.py says which mesh axis splits which."""

from models.layers.axes import BLOCK_AXES
from models.layers.text_heads import TEXT_HEAD_AXES
from models.sharding import AxisTable

AXES: AxisTable = ((r"embedding\.table", ("tokens", "dim")), *TEXT_HEAD_AXES, *BLOCK_AXES)
