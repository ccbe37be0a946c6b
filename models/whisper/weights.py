"""Which tensor of a Hugging Face checkpoint is which parameter of Whisper."""

from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_1D, FLAT, KERNEL, OUTPUT_KERNEL
from models.whisper.config import WhisperConfig


def _attention(theirs: str, ours: str) -> tuple[Row, ...]:
    heads = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
    return (
        *(
            row(f"{theirs}.{k}.weight", f"{ours}.{name}.kernel", KERNEL)
            for name, k in heads.items()
        ),
        *(row(f"{theirs}.{k}.bias", f"{ours}.{name}.bias", FLAT) for name, k in heads.items()),
        row(f"{theirs}.out_proj.weight", f"{ours}.output.kernel", OUTPUT_KERNEL),
        row(f"{theirs}.out_proj.bias", f"{ours}.output.bias"),
    )


def _norm(theirs: str, ours: str) -> tuple[Row, ...]:
    return (row(f"{theirs}.weight", f"{ours}.scale"), row(f"{theirs}.bias", f"{ours}.bias"))


_KEY, _BLOCK = "layers.{i}", "blocks.{i}"
_BLOCKS: tuple[Row, ...] = (
    *_attention(f"{_KEY}.self_attn", f"{_BLOCK}.attention"),
    *_norm(f"{_KEY}.self_attn_layer_norm", f"{_BLOCK}.attention_norm"),
    row(f"{_KEY}.fc1.weight", f"{_BLOCK}.mlp.up.kernel", KERNEL),
    row(f"{_KEY}.fc1.bias", f"{_BLOCK}.mlp.up.bias"),
    row(f"{_KEY}.fc2.weight", f"{_BLOCK}.mlp.down.kernel", KERNEL),
    row(f"{_KEY}.fc2.bias", f"{_BLOCK}.mlp.down.bias"),
    *_norm(f"{_KEY}.final_layer_norm", f"{_BLOCK}.mlp_norm"),
    *_norm("layer_norm", "norm"),
)
_ENCODER = (
    row("conv1.weight", "conv_1.kernel", CONV_1D),
    row("conv1.bias", "conv_1.bias"),
    row("conv2.weight", "conv_2.kernel", CONV_1D),
    row("conv2.bias", "conv_2.bias"),
    row("embed_positions.weight", "sinusoids"),
    *_BLOCKS,
)
_DECODER = (
    row("embed_tokens.weight", "embedding.table"),
    row("embed_positions.weight", "positions"),
    *_attention(f"{_KEY}.encoder_attn", f"{_BLOCK}.cross_attention"),
    *_norm(f"{_KEY}.encoder_attn_layer_norm", f"{_BLOCK}.cross_attention_norm"),
    *_BLOCKS,
)
_TABLE = KeyTable(
    (
        *prefixed("model.encoder.", _ENCODER, "encoder."),
        *prefixed("model.decoder.", _DECODER, "decoder."),
    ),
    renames=((r"^(encoder|decoder)\.", r"model.\1."),),  # saved without the head's prefix
    ignored=(r"proj_out\.weight",),  # the token table once more
)


def key_table(config: WhisperConfig) -> KeyTable:
    """The table, the same for every config."""
    return _TABLE
