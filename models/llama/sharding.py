"""Axes of every Llama parameter, and how they are split over a mesh ("data", "model").

Megatron's layout (Shoeybi et al., 2019): attention heads and the feed-forward width are split, so
each block needs one all-reduce after attention and one after the MLP; the embedding and the head
are split by vocabulary.
"""

from models.sharding import AxisRules, AxisTable

AXES: AxisTable = (
    (r"(embedding|head)\.table", ("vocab", "dim")),
    (r"blocks\.\d+\.attention\.query\.kernel", ("dim", "heads", "head_dim")),
    (r"blocks\.\d+\.attention\.(key|value)\.kernel", ("dim", "kv_heads", "head_dim")),
    (r"blocks\.\d+\.attention\.output\.kernel", ("heads", "head_dim", "dim")),
    (r"blocks\.\d+\.mlp\.(gate|up)\.kernel", ("dim", "hidden_dim")),
    (r"blocks\.\d+\.mlp\.down\.kernel", ("hidden_dim", "dim")),
    (r"(.*\.)?(attention_norm|mlp_norm|norm)\.scale", ("dim",)),
)

RULES: AxisRules = {
    "vocab": "model",
    "heads": "model",
    "kv_heads": "model",
    "hidden_dim": "model",
}
