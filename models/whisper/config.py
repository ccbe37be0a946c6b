"""Dimensions and constants of Whisper."""

from dataclasses import dataclass

from models.common_settings import common
from models.errors import ConfigError
from models.layers.blocks import BlockShape
from models.settings import (
    LAYERS,
    TOKENS,
    WIDTH,
    ModelConfig,
    check_multiple,
    setting,
)


@dataclass(frozen=True)
class WhisperConfig(ModelConfig):
    """Every dimension and constant of the model; the default is Whisper tiny.

    Raises ConfigError if the dimensions do not fit together.
    """

    vocab_size: int = common("vocab_size", default=51865)
    num_mels: int = setting(
        "num_mel_bins", "number of mel bands in the spectrogram", WIDTH, default=80
    )
    dim: int = common("d_model", default=384)
    encoder_layers: int = setting("encoder_layers", "number of encoder layers", LAYERS, default=4)
    encoder_heads: int = setting(
        "encoder_attention_heads", "number of attention heads in the encoder", WIDTH, default=6
    )
    encoder_hidden_dim: int = setting(
        "encoder_ffn_dim", "width of the encoder's feed-forward block", WIDTH, default=1536
    )
    decoder_layers: int = setting("decoder_layers", "number of decoder layers", LAYERS, default=4)
    decoder_heads: int = setting(
        "decoder_attention_heads", "number of attention heads in the decoder", WIDTH, default=6
    )
    decoder_hidden_dim: int = setting(
        "decoder_ffn_dim", "width of the decoder's feed-forward block", WIDTH, default=1536
    )
    act: str = common("activation_function", default="gelu")
    max_source_len: int = setting(
        "max_source_positions",
        "number of encoder positions: half the number of spectrogram frames",
        TOKENS,
        default=1500,
    )
    max_seq_len: int = setting(
        "max_target_positions", "longest text, in tokens", TOKENS, default=448
    )
    initializer_range: float = common("init_std", default=0.02)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "dim", "encoder_heads")
        check_multiple(self, "dim", "decoder_heads")
        if self.dim % 2:
            raise ConfigError(f"dim={self.dim} is odd, but positions are pairs of sine and cosine")

    @property
    def num_frames(self) -> int:
        """Frames of the spectrogram: the second convolution takes every other one."""
        return 2 * self.max_source_len

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Text lengths beyond which the cache must be filled anew: there are none."""
        return ()

    @property
    def encoder_block(self) -> BlockShape:
        return self._block(self.encoder_heads, self.encoder_hidden_dim)

    @property
    def decoder_block(self) -> BlockShape:
        return self._block(self.decoder_heads, self.decoder_hidden_dim)

    def _block(self, num_heads: int, hidden_dim: int) -> BlockShape:
        return BlockShape.of(
            self, hidden_dim=hidden_dim, num_heads=num_heads, norm_eps=1e-5, key_bias=False
        )
