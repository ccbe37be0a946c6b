"""MobileViT: from its config.json and its tensors to the model. Defaults are those of
transformers."""

from collections.abc import Iterator

from models.image_heads import classifier, image_architectures, segmenter
from models.mobilevit.config import CONVOLUTIONS, TRANSFORMERS, MobileViTConfig
from models.mobilevit.model import MobileViT
from models.weights.backbone import Backbone
from models.weights.rows import FILE_BLOCK, block_rows, conv_norm_rows, inverted_rows, norm_rows
from models.weights.table import Row, row
from models.weights.transforms import CONV_2D


def _transformer(theirs: str, ours: str) -> Iterator[Row]:
    yield from inverted_rows(f"{theirs}.downsampling_layer", f"{ours}.shrink")
    yield from conv_norm_rows(f"{theirs}.conv_kxk", f"{ours}.before")
    yield row(f"{theirs}.conv_1x1.convolution.weight", f"{ours}.widen.kernel", CONV_2D)
    yield from block_rows(f"{theirs}.transformer.layer.{{i}}", f"{ours}.blocks.{{i}}", FILE_BLOCK)
    yield from norm_rows(f"{theirs}.layernorm", f"{ours}.norm")
    yield from conv_norm_rows(f"{theirs}.conv_projection", f"{ours}.projection")
    yield from conv_norm_rows(f"{theirs}.fusion", f"{ours}.fusion")


def _body() -> Iterator[Row]:
    yield from conv_norm_rows("conv_stem", "stem")
    for i in range(len(CONVOLUTIONS)):
        yield from inverted_rows(f"encoder.layer.{i}.layer.{{b}}", f"convolutions.{i}.{{b}}")
    for i in range(len(TRANSFORMERS)):
        yield from _transformer(f"encoder.layer.{i + len(CONVOLUTIONS)}", f"transformers.{i}")
    yield from conv_norm_rows("conv_1x1_exp", "last")


_HEADS = {
    **classifier(),
    **segmenter("aspp.convs.4.conv_1x1", "aspp.convs.{i}", "aspp.project"),
}
ARCHITECTURES = image_architectures(
    "MobileViT",
    "mobilevit",
    MobileViTConfig(),
    MobileViT,
    Backbone("mobilevit.", tuple(_body())),
    _HEADS,
)
