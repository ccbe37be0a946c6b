"""Dropout of all weights' training; adapters have their own."""

from dataclasses import dataclass

from flax import nnx

from launch.errors import ModelError
from launch.settings import check_settings, setting
from models.layers.drop import drop_attention, drop_hidden


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
