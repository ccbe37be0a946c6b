"""Axes of every decoder parameter; models/sharding.py says which mesh axis splits which.

Megatron's layout (Shoeybi et al., 2019): attention heads and the feed-forward width are split, so
each block needs one all-reduce after attention and one after the MLP; the embedding and the head
are split by vocabulary, the experts by expert.
"""

from models.sharding import AxisTable

AXES: AxisTable = (
    (r"(embedding|head)\.table", ("vocab", "dim")),
    (r"blocks\.\d+\.attention\.query\.kernel", ("dim", "heads", "head_dim")),
    (r"blocks\.\d+\.attention\.query\.bias", ("heads", "head_dim")),
    (r"blocks\.\d+\.attention\.(key|value)\.kernel", ("dim", "kv_heads", "head_dim")),
    (r"blocks\.\d+\.attention\.(key|value)\.bias", ("kv_heads", "head_dim")),
    (r"blocks\.\d+\.attention\.output\.kernel", ("heads", "head_dim", "dim")),
    (r"blocks\.\d+\.attention\.(query|key)_norm\.scale", ("head_dim",)),
    (r"blocks\.\d+\.attention\.cache_scales\.(key|value)", ("scale",)),
    (r"blocks\.\d+\.mlp\.(gate|up)\.kernel", ("dim", "hidden_dim")),
    (r"blocks\.\d+\.mlp\.(gate|up)\.bias", ("hidden_dim",)),
    (r"blocks\.\d+\.mlp\.down\.kernel", ("hidden_dim", "dim")),
    (r"blocks\.\d+\.(attention\.output|mlp\.down)\.bias", ("residual",)),
    (r"blocks\.\d+\.mlp\.router", ("residual", "choice")),
    (r"blocks\.\d+\.mlp\.experts_(gate|up)", ("experts", "dim", "hidden_dim")),
    (r"blocks\.\d+\.mlp\.experts_down", ("experts", "hidden_dim", "dim")),
    (r"(.*\.)?(attention|mlp|attention_out|mlp_out)_norm\.scale", ("residual",)),
    (r"norm\.scale", ("residual",)),
)
