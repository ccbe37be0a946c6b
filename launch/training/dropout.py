"""Dropout of all weights' training: of what layers add to the residual stream, and of what they
attend to. Adapters have their own."""

from dataclasses import dataclass

from flax import nnx

from launch.errors import ModelError
from launch.settings import check_settings, setting
from models.layers.attention import Attention
from models.layers.dropout import Dropout
from models.layers.linear import Linear
from models.layers.mlp import MLP, GatedMLP
from models.layers.moe import MoE


@dataclass(frozen=True, kw_only=True)
class DropoutSettings:
    """Shares that training drops, by the names that Megatron-LM has for them."""

    hidden_dropout: float = setting(
        0.0,
        "Dropout on what attention and feed-forward layers add to the residual stream.",
        lowest=0.0,
        below=1.0,
    )
    attention_dropout: float = setting(
        0.0, "Dropout on the weights of attention.", lowest=0.0, below=1.0
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def put_into(self, module: nnx.Module, name: str) -> None:
        """Has a model drop these shares in training. Raises ModelError if it has nothing to drop;
        `name` is that of its architecture."""
        if self.hidden_dropout and not drop_hidden(module, self.hidden_dropout):
            raise ModelError(
                f"--hidden_dropout={self.hidden_dropout:g}: {name} has no attention or "
                "feed-forward layers whose results could be dropped. Leave it out."
            )
        if self.attention_dropout and not drop_attention(module, self.attention_dropout):
            raise ModelError(
                f"--attention_dropout={self.attention_dropout:g}: {name} has no attention whose "
                "weights could be dropped. Leave it out."
            )


NO_DROPOUT = DropoutSettings()


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
