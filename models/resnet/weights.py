"""Key table of ResNet: the tensors of Hugging Face checkpoints and their parameters."""

from models.resnet.config import ResNetConfig
from models.weights.rows import conv_norm_rows, dense_rows
from models.weights.table import KeyTable, prefixed

_BLOCK = "encoder.stages.{s}.layers.{b}"
_BODY = (
    *conv_norm_rows("embedder.embedder", "stem"),
    *conv_norm_rows(f"{_BLOCK}.shortcut", "stages.{s}.{b}.shortcut"),
    *conv_norm_rows(f"{_BLOCK}.layer.{{c}}", "stages.{s}.{b}.layers.{c}"),
)
_CLASSIFIER = tuple(dense_rows("classifier.1", "classifier"))


def key_table(config: ResNetConfig) -> KeyTable:
    """The table for one config: with a classifier, the backbone's keys have a prefix."""
    prefix, heads = ("", ()) if config.num_labels is None else ("resnet.", _CLASSIFIER)
    return KeyTable(
        (*prefixed(prefix, _BODY), *heads),
        renames=((r"^resnet\.", ""), (r"^(embedder|encoder)\.", rf"{prefix}\1.")),
        ignored=(r".*\.num_batches_tracked",),
    )
