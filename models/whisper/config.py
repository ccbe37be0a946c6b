"""Dimensions and constants of Whisper."""

from dataclasses import dataclass

from models.encoder_decoder_config import EncoderDecoderConfig
from models.errors import ConfigError
from models.settings import setting


@dataclass(frozen=True, kw_only=True)
class WhisperConfig(EncoderDecoderConfig):
    """Every dimension and constant of the model; the default is Whisper tiny.

    Raises ConfigError if the dimensions do not fit together.
    """

    vocab_size: int = setting("vocab_size", default=51_865)
    num_mels: int = setting("num_mel_bins", default=80)
    dim: int = setting("d_model", default=384)
    num_layers: int = setting("encoder_layers", default=4)
    num_heads: int = setting("encoder_attention_heads", default=6)
    hidden_dim: int = setting("encoder_ffn_dim", default=1536)
    num_decoder_layers: int = setting("decoder_layers", default=4)
    num_decoder_heads: int = setting("decoder_attention_heads", default=6)
    decoder_hidden_dim: int = setting("decoder_ffn_dim", default=1536)
    max_source_len: int = setting("max_source_positions", default=1500)
    max_seq_len: int = setting("max_target_positions", default=448)
    pre_norm: bool = True
    key_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % 2:
            raise ConfigError(f"dim={self.dim} is odd, but positions are pairs of sine and cosine")

    @property
    def num_frames(self) -> int:
        """Frames of the spectrogram: the second convolution takes every other one."""
        return 2 * self.max_source_len
