"""Key table of Faster R-CNN: torchvision's tensors and their parameters."""

from collections.abc import Iterator

from models.detector.config import DetectorConfig
from models.weights.rows import batch_norm_rows, dense_rows
from models.weights.table import KeyTable, Row, row
from models.weights.transforms import CONV_2D, FLAT


def key_table(config: DetectorConfig) -> KeyTable:
    """The table for one config, also of files from before the layers of the pyramid and of the
    first stage were sequences."""
    return KeyTable(
        tuple(_rows(config)),
        renames=(
            (r"^(backbone\.fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)$", r"\1.0.\2"),
            (r"^rpn\.head\.conv\.(weight|bias)$", r"rpn.head.conv.0.0.\1"),
        ),
        ignored=(r".*\.num_batches_tracked",),
    )


def _rows(config: DetectorConfig) -> Iterator[Row]:
    yield from _conv_norm("backbone.body.conv1", "backbone.body.bn1", "backbone.stem")
    convolutions = 3 if config.backbone.bottleneck else 2
    for stage in range(len(config.backbone.depths)):
        theirs, ours = f"backbone.body.layer{stage + 1}.{{b}}", f"backbone.stages.{stage}.{{b}}"
        yield from _conv_norm(
            f"{theirs}.downsample.0", f"{theirs}.downsample.1", f"{ours}.shortcut"
        )
        for i in range(convolutions):
            number = i + 1
            yield from _conv_norm(
                f"{theirs}.conv{number}", f"{theirs}.bn{number}", f"{ours}.layers.{i}"
            )
    yield from dense_rows("backbone.fpn.inner_blocks.{i}.0", "pyramid.inwards.{i}", CONV_2D)
    yield from dense_rows("backbone.fpn.layer_blocks.{i}.0", "pyramid.outwards.{i}", CONV_2D)
    yield from dense_rows("rpn.head.conv.0.0", "proposer.conv", CONV_2D)
    yield from dense_rows("rpn.head.cls_logits", "proposer.score", CONV_2D)
    yield from dense_rows("rpn.head.bbox_pred", "proposer.step", CONV_2D)
    yield from dense_rows("roi_heads.box_head.fc6", "hidden_1")
    yield from dense_rows("roi_heads.box_head.fc7", "hidden_2")
    yield from dense_rows("roi_heads.box_predictor.cls_score", "score")
    yield from dense_rows("roi_heads.box_predictor.bbox_pred", "step", bias=FLAT)


def _conv_norm(convolution: str, norm: str, ours: str) -> Iterator[Row]:
    yield row(f"{convolution}.weight", f"{ours}.convolution.kernel", CONV_2D)
    yield from batch_norm_rows(norm, f"{ours}.norm")
