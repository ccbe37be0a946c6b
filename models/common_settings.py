"""What the configs of most transformers have."""

from dataclasses import dataclass

from models.settings import ModelConfig, check_multiple, setting


@dataclass(frozen=True, kw_only=True)
class NormalConfig(ModelConfig):
    """The settings of models whose initial weights are drawn from a normal distribution."""

    initializer_range: float = setting("initializer_range", default=0.02)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(NormalConfig):
    """A config of blocks that are all alike, with BERT's names and BERT-Base's defaults."""

    num_layers: int = setting("num_hidden_layers", default=12)
    dim: int = setting("hidden_size", default=768)
    hidden_dim: int = setting("intermediate_size", default=3072)
    num_heads: int = setting("num_attention_heads", default=12)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self, "dim", "num_heads")

    @property
    def head_dim(self) -> int:
        """The width of one head."""
        return self.dim // self.num_heads
