"""Whisper: from its config.json and its tensors to the model."""

from models.architecture import Architecture
from models.weights.rows import FAIRSEQ_BLOCK, attention_rows, block_rows, dense_rows, norm_rows
from models.weights.table import KeyTable, prefixed, row
from models.weights.tied import refuse_own_head
from models.weights.transforms import CONV_1D
from models.whisper.config import WhisperConfig
from models.whisper.model import Whisper

_KEY, _BLOCK = "layers.{i}", "blocks.{i}"
_BLOCKS = (*block_rows(_KEY, _BLOCK, FAIRSEQ_BLOCK), *norm_rows("layer_norm", "norm"))
_ENCODER = (
    *dense_rows("conv1", "conv_1", CONV_1D),
    *dense_rows("conv2", "conv_2", CONV_1D),
    row("embed_positions.weight", "sinusoids"),
    *_BLOCKS,
)
_DECODER = (
    row("embed_tokens.weight", "embedding.table"),
    row("embed_positions.weight", "positions"),
    *attention_rows(f"{_KEY}.encoder_attn", f"{_BLOCK}.cross_attention"),
    *norm_rows(f"{_KEY}.encoder_attn_layer_norm", f"{_BLOCK}.cross_norm"),
    *_BLOCKS,
)
KEYS = KeyTable(
    (
        *prefixed("model.encoder.", _ENCODER, "encoder."),
        *prefixed("model.decoder.", _DECODER, "decoder."),
    ),
    renames=((r"^(encoder|decoder)\.", r"model.\1."),),  # saved without the head's prefix
    ignored=(r"proj_out\.weight",),  # the token table once more
)


ARCHITECTURES = (
    Architecture.of(
        "WhisperForConditionalGeneration",
        WhisperConfig(),
        Whisper,
        KEYS,
        task="automatic-speech-recognition",
        read=refuse_own_head,
    ),
)
