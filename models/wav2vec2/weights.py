"""Key table of models of speech: the tensors of Hugging Face checkpoints and their parameters."""

from collections.abc import Mapping

from models.wav2vec2.config import SpeechConfig
from models.weights.rows import BlockNames, batch_norm_rows, block_rows, dense_rows, norm_rows
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_1D, OUTPUT_KERNEL, Leading

_LAYER, _BLOCK = "encoder.layers.{i}", "blocks.{i}"
_POSITIONS = "encoder.pos_conv_embed"
_PARAMETRIZED = f"{_POSITIONS}.conv.parametrizations.weight.original"
_NAMES = BlockNames(
    ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attention.out_proj",
    "feed_forward.intermediate_dense",
    "feed_forward.output_dense",
    ("layer_norm", "final_layer_norm"),
)
_BODY = (
    *dense_rows("feature_extractor.conv_layers.{i}.conv", "convolutions.{i}.conv", CONV_1D),
    *norm_rows("feature_extractor.conv_layers.{i}.layer_norm", "convolutions.{i}.norm"),
    *norm_rows("feature_projection.layer_norm", "feature_norm"),
    *dense_rows("feature_projection.projection", "projection"),
    row(f"{_POSITIONS}.conv.bias", "position_conv.bias"),
    *norm_rows("encoder.layer_norm", "norm"),
    *block_rows(_LAYER, _BLOCK, _NAMES),
    row(f"{_LAYER}.attention.gru_rel_pos_const", f"{_BLOCK}.gate.scale", Leading(1, behind=2)),
    *dense_rows(f"{_LAYER}.attention.gru_rel_pos_linear", f"{_BLOCK}.gate.linear"),
    row("encoder.layers.0.attention.rel_attn_embed.weight", "relative.table"),
    *norm_rows(f"{_LAYER}.adapter_layer.norm", f"{_BLOCK}.adapter.norm"),
    *dense_rows(f"{_LAYER}.adapter_layer.linear_1", f"{_BLOCK}.adapter.down"),
    *dense_rows(f"{_LAYER}.adapter_layer.linear_2", f"{_BLOCK}.adapter.up"),
    *dense_rows("adapter.proj", "adapter.projection"),
    *norm_rows("adapter.proj_layer_norm", "adapter.norm"),
    *dense_rows("adapter.layers.{i}.conv", "adapter.layers.{i}", CONV_1D),
)
_NORMED = (
    row(f"{_PARAMETRIZED}0", "position_conv.scale", Leading(2)),
    row(f"{_PARAMETRIZED}1", "position_conv.kernel", CONV_1D),
)
_WITH_BATCH_NORM = (
    row(f"{_POSITIONS}.conv.weight", "position_conv.kernel", CONV_1D),
    *batch_norm_rows(f"{_POSITIONS}.batch_norm", "position_norm"),
)
_LAYERS = row("layer_weights", "layer_scores")
LETTERS = tuple(dense_rows("lm_head", "letters"))
FRAMES = (_LAYERS, *dense_rows("classifier", "classifier"))
SOUND = (*FRAMES, *dense_rows("projector", "projector"))
SPEAKER = (
    *SOUND,
    *dense_rows("tdnn.{i}.kernel", "tdnn.{i}", OUTPUT_KERNEL),
    *dense_rows("feature_extractor", "embedding"),
    row("objective.weight", "speakers.kernel"),
)
_UNREAD = (  # heads of another model, and of training without labels
    r"(lm_head|projector|classifier|tdnn|feature_extractor|objective)(\.\d+\.kernel)?\.(weight|bias)",
    r"layer_weights|label_embeddings_concat",
    r"(quantizer|project_q|project_hid|ctc_proj|speaker_proj|layer_norm_for_extract)\..*",
)
_RENAMES: Mapping[str, str] = {  # as PyTorch before 2.1 has it
    rf"({_POSITIONS}\.conv)\.weight_g$": r"\1.parametrizations.weight.original0",
    rf"({_POSITIONS}\.conv)\.weight_v$": r"\1.parametrizations.weight.original1",
}


def key_table(prefix: str, head: tuple[Row, ...], config: SpeechConfig) -> KeyTable:
    """The table for one config: with a head, the backbone's keys have the prefix."""
    shown = prefix if head else ""
    body = (*_BODY, *(_WITH_BATCH_NORM if config.position_batch_norm else _NORMED))
    return KeyTable(
        (*prefixed(shown, body, "backbone."), *head),
        renames=(
            (rf"^{prefix}", ""),
            *_RENAMES.items(),
            (
                r"^(feature_extractor\.conv_layers|feature_projection|encoder|adapter)\.",
                rf"{shown}\1.",
            ),
        ),
        ignored=(
            rf"({prefix})?masked_spec_embed",
            r".*\.num_batches_tracked",
            *(() if head else _UNREAD),
        ),
    )
