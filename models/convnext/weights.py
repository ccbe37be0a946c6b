"""Key table of ConvNeXt: the tensors of Hugging Face checkpoints and their parameters."""

from models.convnext.config import ConvNextConfig
from models.weights.rows import dense_rows, norm_rows
from models.weights.table import KeyTable, prefixed, row
from models.weights.transforms import CONV_2D, Leading

_THEIRS, _OURS = "encoder.stages.{s}", "stages.{s}"
_THEIR_BLOCK, _OUR_BLOCK = f"{_THEIRS}.layers.{{b}}", f"{_OURS}.blocks.{{b}}"
_BODY = (
    *dense_rows("embeddings.patch_embeddings", "patches", CONV_2D),
    *norm_rows("embeddings.layernorm", "patch_norm"),
    *norm_rows(f"{_THEIRS}.downsampling_layer.0", f"{_OURS}.norm"),
    *dense_rows(f"{_THEIRS}.downsampling_layer.1", f"{_OURS}.resize", CONV_2D),
    *dense_rows(f"{_THEIR_BLOCK}.dwconv", f"{_OUR_BLOCK}.depthwise", CONV_2D),
    *norm_rows(f"{_THEIR_BLOCK}.layernorm", f"{_OUR_BLOCK}.norm"),
    *dense_rows(f"{_THEIR_BLOCK}.pwconv1", f"{_OUR_BLOCK}.up"),
    row(f"{_THEIR_BLOCK}.grn.weight", f"{_OUR_BLOCK}.response_norm.scale", Leading(3)),
    row(f"{_THEIR_BLOCK}.grn.bias", f"{_OUR_BLOCK}.response_norm.bias", Leading(3)),
    *dense_rows(f"{_THEIR_BLOCK}.pwconv2", f"{_OUR_BLOCK}.down"),
    row(f"{_THEIR_BLOCK}.layer_scale_parameter", f"{_OUR_BLOCK}.layer_scale"),
    *norm_rows("layernorm", "norm"),
)


def key_table(model_type: str, config: ConvNextConfig) -> KeyTable:
    """The table for one config: with a classifier, the backbone's keys have a prefix."""
    has_head = config.num_labels is not None
    prefix = f"{model_type}." if has_head else ""
    return KeyTable(
        (*prefixed(prefix, _BODY), *(dense_rows("classifier", "classifier") if has_head else ())),
        renames=(
            (rf"^{model_type}\.", ""),
            (r"^(embeddings|encoder|layernorm)\.", rf"{prefix}\1."),
        ),
        ignored=() if has_head else (r"classifier\..*",),
    )
