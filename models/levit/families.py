"""LeViT: from its config.json and its tensors to the model. Defaults are those of transformers."""

from collections.abc import Iterator

from models.image_heads import Head, image_architectures
from models.levit.config import NUM_CONVOLUTIONS, LevitConfig
from models.levit.model import Levit
from models.weights.backbone import Backbone
from models.weights.rows import batch_norm_rows, conv_norm_rows, dense_rows
from models.weights.table import Row, row
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


def _body() -> Iterator[Row]:
    for i in range(NUM_CONVOLUTIONS):
        theirs = f"patch_embeddings.embedding_layer_{i + 1}"
        yield from conv_norm_rows(theirs, f"patches.{i}", "batch_norm")
    for theirs, ours in _PARTS:
        yield row(f"{_THEIRS}.{theirs}.linear.weight", f"{_OURS}.{ours}.linear.kernel", KERNEL)
        yield from batch_norm_rows(f"{_THEIRS}.{theirs}.batch_norm", f"{_OURS}.{ours}.norm")
    yield row(f"{_THEIRS}.module.attention_biases", f"{_OURS}.module.table")
    yield row(f"{_THEIRS}.attention_biases", f"{_OURS}.table")


def _head(key: str, ours: str) -> Iterator[Row]:
    yield from batch_norm_rows(f"{key}.batch_norm", f"{ours}.norm")
    yield from dense_rows(f"{key}.linear", f"{ours}.linear")


_OWN = tuple(_head("classifier", "heads.0"))
_TAUGHT = tuple(_head("classifier_distill", "heads.1"))

ARCHITECTURES = image_architectures(
    "Levit",
    "levit",
    LevitConfig(),
    Levit,
    Backbone("levit.", tuple(_body()), (r".*\.attention_bias_idxs",)),
    {
        "ForImageClassification": Head(_OWN, ignored=(r"classifier_distill\..*",)),
        "ForImageClassificationWithTeacher": Head((*_OWN, *_TAUGHT), settings={"distilled": True}),
    },
)
