"""Axes of every parameter of T5; models/sharding.py says which mesh axis splits which."""

from models.layers.axes import BLOCK_AXES
from models.sharding import AxisTable

AXES: AxisTable = (
    (r"(embedding|head)\.table", ("vocab", "dim")),
    (r"(encoder|decoder)\.relative\.table", ("buckets", "heads")),
    *BLOCK_AXES,
)
