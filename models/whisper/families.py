"""Whisper: from its config.json to the model. Defaults are those of transformers."""

from models.architecture import Architecture
from models.weights.fields import Fields, read_dtype
from models.whisper.config import WhisperConfig
from models.whisper.model import Whisper
from models.whisper.sharding import AXES
from models.whisper.weights import key_table


def _whisper(fields: Fields) -> WhisperConfig:
    fields.refuse("tie_word_embeddings", True, why="Whisper's head is its token table")
    dtype = read_dtype(fields)
    return WhisperConfig(
        vocab_size=fields.positive("vocab_size", 51865),
        num_mels=fields.positive("num_mel_bins", 80),
        dim=fields.positive("d_model", 384),
        encoder_layers=fields.positive("encoder_layers", 4),
        encoder_heads=fields.positive("encoder_attention_heads", 6),
        encoder_hidden_dim=fields.positive("encoder_ffn_dim", 1536),
        decoder_layers=fields.positive("decoder_layers", 4),
        decoder_heads=fields.positive("decoder_attention_heads", 6),
        decoder_hidden_dim=fields.positive("decoder_ffn_dim", 1536),
        act=fields.text("activation_function", "gelu"),
        max_source_len=fields.positive("max_source_positions", 1500),
        max_seq_len=fields.positive("max_target_positions", 448),
        initializer_range=fields.number("init_std", 0.02),
        dtype=dtype,
        param_dtype=dtype,
    )


ARCHITECTURES = (
    Architecture(
        name="WhisperForConditionalGeneration",
        model_type="whisper",
        family="whisper",
        task="automatic-speech-recognition",
        read_config=_whisper,
        model=Whisper,
        axes=AXES,
        keys=key_table,
    ),
)
