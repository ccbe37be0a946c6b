"""Axes of every Whisper parameter; models/sharding.py says which mesh axis splits which.

The token table is not split by vocabulary: most Whisper vocabularies have an odd size.
"""

from models.layers.axes import BLOCK_AXES
from models.sharding import AxisTable

AXES: AxisTable = (
    *BLOCK_AXES,
    (r"encoder\.conv_1\.kernel", ("window", "mels", "hidden_dim")),
    (r"encoder\.conv_1\.bias", ("hidden_dim",)),
    (r"encoder\.conv_2\.kernel", ("window", "hidden_dim", "dim")),
    (r"encoder\.conv_2\.bias", ("residual",)),
    (r"encoder\.sinusoids", ("positions", "dim")),
    (r"decoder\.positions", ("positions", "dim")),
    (r"decoder\.embedding\.table", ("tokens", "dim")),
)
