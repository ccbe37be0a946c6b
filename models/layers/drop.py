"""Dropout in models as they are trained: of what layers add to the residual stream, and of what
attention looks at."""

from flax import nnx

from models.layers.attention import Attention
from models.layers.dropout import Dropout
from models.layers.linear import Linear
from models.layers.mlp import MLP, GatedMLP
from models.layers.moe import MoE


def drop_hidden(model: nnx.Module, rate: float) -> bool:
    """Drops a share of what attention and feed-forward layers put out, in training; returns whether
    there are any."""
    ends: list[Linear | MoE] = []
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Attention):
            ends.append(module.output)
        elif isinstance(module, MLP | GatedMLP):
            ends.append(module.down)
        elif isinstance(module, MoE):
            ends.append(module)
    # What experts that all tokens visit put out is dropped with the rest of the mixture.
    mixtures = [module for module in ends if isinstance(module, MoE)]
    shared = [id(mixture.shared.down) for mixture in mixtures if mixture.shared is not None]
    for layer in ends:
        if id(layer) not in shared:
            layer.dropout = Dropout(rate)
    return bool(ends)


def drop_attention(model: nnx.Module, rate: float) -> bool:
    """Drops a share of the weights of attention, in training; returns whether there is any."""
    layers = [module for _, module in nnx.iter_modules(model) if isinstance(module, Attention)]
    for layer in layers:
        layer.dropout = Dropout(rate)
    return bool(layers)
