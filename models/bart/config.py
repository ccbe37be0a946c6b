"""Dimensions and constants of BART and Marian."""

from dataclasses import dataclass

from models.encoder_decoder_config import EncoderDecoderConfig
from models.settings import setting


@dataclass(frozen=True, kw_only=True)
class BartConfig(EncoderDecoderConfig):
    """Every dimension and constant of the model.

    Raises ConfigError if the dimensions do not fit together.
    """

    start_token: int = setting("decoder_start_token_id", default=2)
    max_seq_len: int = setting("max_position_embeddings", default=1024)
    scale_embedding: bool = setting("scale_embedding", default=False)
    learned_positions: bool = True  # else sines and cosines
    embedding_norm: bool = True  # of the first block's input
    logits_bias: bool = False  # which nothing trains
