"""Names of the axes of the building blocks' parameters: rows for the families' axis tables.

Megatron's layout (Shoeybi et al., 2019): attention heads and the feed-forward width are split, so
each block needs one all-reduce after attention and one after the feed-forward block.
"""

from models.sharding import AxisTable

ATTENTION_AXES: AxisTable = (
    (r".*attention\.query\.kernel", ("dim", "heads", "head_dim")),
    (r".*attention\.query\.bias", ("heads", "head_dim")),
    (r".*attention\.(key|value)\.kernel", ("dim", "kv_heads", "head_dim")),
    (r".*attention\.(key|value)\.bias", ("kv_heads", "head_dim")),
    (r".*attention\.output\.kernel", ("heads", "head_dim", "dim")),
    (r".*attention\.output\.bias", ("residual",)),
)

MLP_AXES: AxisTable = (
    (r".*mlp\.(gate|up)\.kernel", ("dim", "hidden_dim")),
    (r".*mlp\.(gate|up)\.bias", ("hidden_dim",)),
    (r".*mlp\.down\.kernel", ("hidden_dim", "dim")),
    (r".*mlp\.down\.bias", ("residual",)),
)

NORM_AXES: AxisTable = ((r"(.*[._])?norm\.(scale|bias)", ("residual",)),)

BLOCK_AXES: AxisTable = (*ATTENTION_AXES, *MLP_AXES, *NORM_AXES)
