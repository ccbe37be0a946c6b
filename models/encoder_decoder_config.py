"""What the configs of encoder-decoders share whose config.json has BART's names."""

from dataclasses import dataclass

from models.layers.blocks import BlockShape
from models.layers.encoder_decoder import CacheShape
from models.settings import ModelConfig, check_multiple, setting


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(ModelConfig):
    """The dimensions of both sides; the defaults are BART's."""

    max_seq_len: int
    vocab_size: int = setting("vocab_size", default=50_265)
    num_layers: int = setting("encoder_layers", default=12)
    num_decoder_layers: int = setting("decoder_layers", default=12)
    dim: int = setting("d_model", default=1024)
    hidden_dim: int = setting("encoder_ffn_dim", default=4096)
    decoder_hidden_dim: int = setting("decoder_ffn_dim", default=4096)
    num_heads: int = setting("encoder_attention_heads", default=16)
    num_decoder_heads: int = setting("decoder_attention_heads", default=16)
    act: str = setting("activation_function", default="gelu")
    initializer_range: float = setting("init_std", default=0.02)
    norm_eps: float = 1e-5
    pre_norm: bool = False  # norms stand before the parts of a block; otherwise behind
    key_bias: bool = True  # of the keys in attention

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "dim", "num_heads")
        check_multiple(self, "dim", "num_decoder_heads")

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Text lengths beyond which the cache must be filled anew: there are none."""
        return ()

    @property
    def cache_shape(self) -> CacheShape:
        """The shape of what a decoder keeps of a target."""
        layers, heads = self.num_decoder_layers, self.num_decoder_heads
        return CacheShape(layers, heads, self.dim // heads, self.dtype, self.max_seq_len)

    def block(self, *, is_decoder: bool) -> BlockShape:
        """The shape of a block of either side."""
        if not is_decoder:
            return BlockShape.of(self)
        heads, width = self.num_decoder_heads, self.decoder_hidden_dim
        return BlockShape.of(self, num_heads=heads, hidden_dim=width)
