"""Key table of DPT: the tensors of Hugging Face checkpoints and their parameters."""

from functools import partial

from models.dpt.config import DPTConfig
from models.vit.config import ViTConfig
from models.vit.weights import backbone, body_rows
from models.weights.backbone import STEPS
from models.weights.rows import batch_norm_rows, dense_rows
from models.weights.table import KeyTable, prefixed, row
from models.weights.transforms import CONV_2D, Permuted

_conv = partial(dense_rows, kernel=CONV_2D)
_REASSEMBLY, _FUSION = "neck.reassemble_stage", "neck.fusion_stage.layers.{i}"
_NECK = (
    *dense_rows(f"{_REASSEMBLY}.readout_projects.{{i}}.0", "reassemblies.{i}.project"),
    *_conv(f"{_REASSEMBLY}.layers.{{i}}.projection", "reassemblies.{i}.projection"),
    *_conv("neck.convs.{i}", "convolutions.{i}"),
    *_conv(f"{_FUSION}.projection", "fusions.{i}.projection"),
    *(
        line
        for layer, ours in (("residual_layer1", "addition"), ("residual_layer2", "after"))
        for n in (1, 2)
        for line in (
            *_conv(f"{_FUSION}.{layer}.convolution{n}", f"fusions.{{i}}.{ours}.layers.{n - 1}"),
            *batch_norm_rows(
                f"{_FUSION}.{layer}.batch_norm{n}", f"fusions.{{i}}.{ours}.norms.{n - 1}"
            ),
        )
    ),
)
_DEPTH = (
    *_conv("head.projection", "depth.projection"),
    *_conv("head.head.0", "depth.first"),
    *_conv("head.head.2", "depth.second"),
    *_conv("head.head.4", "depth.last"),
)
_CLASSES = tuple(
    line
    for theirs, ours in (("head", "classes"), ("auxiliary_head", "auxiliary"))
    for line in (
        row(f"{theirs}.head.0.weight", f"{ours}.first.kernel", CONV_2D),
        *batch_norm_rows(f"{theirs}.head.1", f"{ours}.norm"),
        *_conv(f"{theirs}.head.4", f"{ours}.last"),
    )
)


def backbone_table(config: ViTConfig) -> KeyTable:
    """The table of a backbone alone."""
    return backbone("dpt.", config).table(None, (*_NECK, *_DEPTH, *_CLASSES))


def key_table(config: DPTConfig) -> KeyTable:
    """The table for one config."""
    resizes = [
        line
        for i, factor in enumerate(config.factors)
        for line in dense_rows(
            f"{_REASSEMBLY}.layers.{i}.resize",
            f"reassemblies.{i}.{'enlarging' if factor > 1 else 'shrinking'}",
            Permuted((0, 2, 3, 1)) if factor > 1 else CONV_2D,
        )
    ]
    heads = _DEPTH if config.num_labels is None else _CLASSES
    return KeyTable(
        (
            *prefixed("dpt.", body_rows(), "backbone."),
            *resizes,
            *_NECK,
            *heads,
        ),
        ignored=(
            STEPS,
            r"dpt\.pooler\..*",
            *(() if config.auxiliary else (r"auxiliary_head\..*",)),
        ),
    )
