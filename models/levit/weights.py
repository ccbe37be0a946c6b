"""Key table of LeViT: the tensors of Hugging Face checkpoints and their parameters."""

from models.levit.config import NUM_CONVOLUTIONS, LevitConfig
from models.weights.backbone import backbone_table
from models.weights.rows import batch_norm_rows, conv_norm_rows, dense_rows
from models.weights.table import KeyTable, Row, row
from models.weights.transforms import KERNEL

_THEIRS, _OURS = "encoder.stages.{s}.layers.{l}", "stages.{s}.{l}"
_PARTS = (
    ("module.queries_keys_values", "module.fused"),
    ("module.projection", "module.projection"),
    ("module.linear_up", "module.up"),
    ("module.linear_down", "module.down"),
    ("keys_values", "fused"),
    ("queries", "queries"),
    ("projection", "projection"),
)


def _linear_norm(theirs: str, ours: str) -> tuple[Row, ...]:
    return (
        row(f"{theirs}.linear.weight", f"{ours}.linear.kernel", KERNEL),
        *batch_norm_rows(f"{theirs}.batch_norm", f"{ours}.norm"),
    )


_BODY = (
    *(
        line
        for i in range(NUM_CONVOLUTIONS)
        for line in conv_norm_rows(
            f"patch_embeddings.embedding_layer_{i + 1}", f"patches.{i}", "batch_norm"
        )
    ),
    *(
        line
        for theirs, ours in _PARTS
        for line in _linear_norm(f"{_THEIRS}.{theirs}", f"{_OURS}.{ours}")
    ),
    row(f"{_THEIRS}.module.attention_biases", f"{_OURS}.module.distances.table"),
    row(f"{_THEIRS}.attention_biases", f"{_OURS}.distances.table"),
)
_HEADS = tuple(
    line
    for i, name in enumerate(("classifier", "classifier_distill"))
    for line in (
        *batch_norm_rows(f"{name}.batch_norm", f"heads.{i}.norm"),
        *dense_rows(f"{name}.linear", f"heads.{i}.linear"),
    )
)


def key_table(config: LevitConfig) -> KeyTable:
    """The table for one config: with a head, the backbone's keys have a prefix."""
    return backbone_table(
        "levit.",
        _BODY,
        None if config.num_labels is None else _HEADS,
        unread=r"classifier.*",
        ignored=(
            r".*\.(num_batches_tracked|attention_bias_idxs)",
            *(() if config.distilled else (r"classifier_distill\..*",)),
        ),
    )
