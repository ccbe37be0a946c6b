"""Dimensions and constants of BART."""

from dataclasses import dataclass

from models.common_settings import common
from models.layers.blocks import BlockShape
from models.settings import (
    LAYERS,
    WIDTH,
    ModelConfig,
    check_multiple,
    setting,
)

NORM_EPS = 1e-5


@dataclass(frozen=True)
class BartConfig(ModelConfig):
    """Every dimension and constant of the model.

    Raises ConfigError if the dimensions do not fit together.
    """

    start_token: int = setting(
        "decoder_start_token_id", "first token of the decoder's input", default=2
    )
    vocab_size: int = common("vocab_size", default=50_265)
    max_seq_len: int = common("max_position_embeddings", default=1024)
    num_layers: int = setting("encoder_layers", "number of encoder layers", LAYERS, default=12)
    num_decoder_layers: int = setting(
        "decoder_layers", "number of decoder layers", LAYERS, default=12
    )
    dim: int = common("d_model", default=1024)
    hidden_dim: int = setting(
        "encoder_ffn_dim", "width of the encoder's feed-forward block", WIDTH, default=4096
    )
    decoder_hidden_dim: int = setting(
        "decoder_ffn_dim", "width of the decoder's feed-forward block", WIDTH, default=4096
    )
    num_heads: int = setting(
        "encoder_attention_heads", "number of attention heads in the encoder", WIDTH, default=16
    )
    num_decoder_heads: int = setting(
        "decoder_attention_heads", "number of attention heads in the decoder", WIDTH, default=16
    )
    act: str = common("activation_function", default="gelu")
    scale_embedding: bool = setting(
        "scale_embedding", "whether token embeddings are multiplied by sqrt(dim)", default=False
    )
    initializer_range: float = common("init_std", default=0.02)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "dim", "num_heads")
        check_multiple(self, "dim", "num_decoder_heads")

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Text lengths beyond which the cache must be filled anew: there are none."""
        return ()

    def block(self, *, is_decoder: bool) -> BlockShape:
        """The shape of a block of either side."""
        if not is_decoder:
            return BlockShape.of(self, norm_eps=NORM_EPS)
        return BlockShape.of(
            self,
            hidden_dim=self.decoder_hidden_dim,
            num_heads=self.num_decoder_heads,
            norm_eps=NORM_EPS,
        )
