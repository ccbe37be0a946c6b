"""Axes of every encoder parameter; models/sharding.py says which mesh axis splits which.

The vocabulary is not split: RoBERTa has 50,265 tokens, which few meshes divide.
"""

from models.layers.axes import BLOCK_AXES
from models.layers.text_heads import TEXT_HEAD_AXES
from models.sharding import AxisTable

AXES: AxisTable = (
    (r"embeddings\.(word|position|type)\.table", ("tokens", "dim")),
    (r"embeddings\.project\.kernel", ("features", "dim")),
    (r"embeddings\.project\.bias", ("residual",)),
    (r"relative\.table", ("buckets", "heads")),
    *TEXT_HEAD_AXES,
    *BLOCK_AXES,
)
