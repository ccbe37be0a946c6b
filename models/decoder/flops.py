"""The arithmetic of a decoder by the usual count, whoever does it and however often."""

from flax import nnx

from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder
from models.parameters import split_abstract


def forward_flops(config: DecoderConfig, rows: int, length: int, context: int | None = None) -> int:
    """Multiplications and additions of one pass over `length` tokens in each of `rows` rows.

    Two for each weight and token, and four for each layer, head feature, token and one of the
    `context` tokens that it may look at (default: `length`; masked ones count), as Chowdhery et
    al., "PaLM", 2022, appendix B. Of experts those count that a token visits; tables that are only
    looked up do not.
    """
    tokens = rows * length
    attention = config.num_layers * config.num_heads * config.head_dim * (context or length)
    return 2 * tokens * _weights(config) + 4 * tokens * attention


def training_flops(config: DecoderConfig, rows: int, length: int) -> int:
    """The FLOPs of a training step: the backward pass takes two for each one of the forward pass,
    and nothing is computed again."""
    return 3 * forward_flops(config, rows, length)


def _weights(config: DecoderConfig) -> int:
    """Weights that a token is multiplied with."""
    _, parameters = split_abstract(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    total = 0
    for path, parameter in parameters.items():
        if path.startswith(("embedding.", "positions.")) and not (
            path.startswith("embedding.") and config.tie_embeddings
        ):
            continue
        visited, count = 1, 1
        if config.experts is not None and "experts_" in path:
            visited, count = config.experts.per_token, config.experts.count
        total += parameter.size * visited // count
    return total
