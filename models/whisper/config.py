"""Dimensions and constants of Whisper."""

from dataclasses import dataclass

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.blocks import BlockShape


@dataclass(frozen=True)
class WhisperConfig:
    """Every dimension and constant of the model; the default is Whisper tiny.

    Raises ConfigError if the dimensions do not fit together.
    """

    vocab_size: int = 51865
    num_mels: int = 80  # of the spectrogram
    dim: int = 384  # width of the residual streams
    encoder_layers: int = 4
    encoder_heads: int = 6
    encoder_hidden_dim: int = 1536  # width of the encoder's feed-forward blocks
    decoder_layers: int = 4
    decoder_heads: int = 6
    decoder_hidden_dim: int = 1536  # width of the decoder's feed-forward blocks
    act: str = "gelu"  # of the feed-forward blocks
    max_source_len: int = 1500  # encoder positions: half as many as the spectrogram has frames
    max_seq_len: int = 448  # longest text, in tokens
    initializer_range: float = 0.02  # standard deviation of the initial weights
    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        for name in ("encoder_heads", "decoder_heads"):
            if self.dim % getattr(self, name):
                raise ConfigError(
                    f"dim={self.dim} is not a multiple of {name}={getattr(self, name)}"
                )
        if self.dim % 2:
            raise ConfigError(f"dim={self.dim} is odd: positions are pairs of sine and cosine")
        activation(self.act)

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
        return BlockShape(
            dim=self.dim,
            hidden_dim=hidden_dim,
            num_heads=num_heads,
            act=self.act,
            norm_eps=1e-5,
            key_bias=False,
            initializer_range=self.initializer_range,
            param_dtype=self.param_dtype,
        )
