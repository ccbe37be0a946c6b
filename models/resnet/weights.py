"""Key table of ResNet: the tensors of Hugging Face checkpoints and their parameters."""

from models.resnet.config import ResNetConfig
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_2D, KERNEL


def _conv_norm(theirs: str, ours: str) -> tuple[Row, ...]:
    norm = f"{theirs}.normalization"
    return (
        row(f"{theirs}.convolution.weight", f"{ours}.convolution.kernel", CONV_2D),
        row(f"{norm}.weight", f"{ours}.norm.scale"),
        row(f"{norm}.bias", f"{ours}.norm.bias"),
        row(f"{norm}.running_mean", f"{ours}.norm.mean"),
        row(f"{norm}.running_var", f"{ours}.norm.variance"),
    )


_BLOCK = "encoder.stages.{s}.layers.{b}"
_BODY = (
    *_conv_norm("embedder.embedder", "stem"),
    *_conv_norm(f"{_BLOCK}.shortcut", "stages.{s}.{b}.shortcut"),
    *_conv_norm(f"{_BLOCK}.layer.{{c}}", "stages.{s}.{b}.layers.{c}"),
)
_CLASSIFIER = (
    row("classifier.1.weight", "classifier.kernel", KERNEL),
    row("classifier.1.bias", "classifier.bias"),
)


def key_table(config: ResNetConfig) -> KeyTable:
    """The table for one config: with a classifier, the backbone's keys have a prefix."""
    prefix, heads = ("", ()) if config.num_labels is None else ("resnet.", _CLASSIFIER)
    return KeyTable(
        (*prefixed(prefix, _BODY), *heads),
        renames=((r"^resnet\.", ""), (r"^(embedder|encoder)\.", rf"{prefix}\1.")),
        ignored=(r".*\.num_batches_tracked",),
    )
