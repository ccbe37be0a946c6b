"""DPT: from its config.json and its tensors to the model."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.dpt.config import DPTConfig
from models.dpt.model import DPT
from models.dpt.stem import STRIDE, StemConfig
from models.published.defaults import DEFAULTS, Defaults
from models.settings import read_model, read_settings, write_settings
from models.vit.config import ViTConfig
from models.vit.families import backbone, body_rows, read_pooler
from models.vit.model import ViT
from models.weights.backbone import STEPS
from models.weights.fields import Fields, count_labels
from models.weights.rows import batch_norm_rows, dense_rows, norm_rows
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_2D, Permuted

_conv = partial(dense_rows, kernel=CONV_2D)
_REASSEMBLY, _FUSION = "neck.reassemble_stage", "neck.fusion_stage.layers.{i}"
_BIT = "dpt.embeddings.backbone.bit"
_STAGE = f"{_BIT}.encoder.stages.{{s}}.layers.{{b}}"
_IN_STEM = "stem.stages.{s}.{b}"
_PAIRS = (
    ("conv1", "norm1", "convolutions.0", "norms.0"),
    ("conv2", "norm2", "convolutions.1", "norms.1"),
    ("conv3", "norm3", "convolutions.2", "norms.2"),
    ("downsample.conv", "downsample.norm", "shortcut", "shortcut_norm"),
)
_STEM = (
    row(f"{_BIT}.embedder.convolution.weight", "stem.convolution.kernel", CONV_2D),
    *norm_rows(f"{_BIT}.embedder.norm", "stem.norm"),
    *(
        line
        for conv, norm, our_conv, our_norm in _PAIRS
        for line in (
            row(f"{_STAGE}.{conv}.weight", f"{_IN_STEM}.{our_conv}.kernel", CONV_2D),
            *norm_rows(f"{_STAGE}.{norm}", f"{_IN_STEM}.{our_norm}"),
        )
    ),
    *_conv("dpt.embeddings.projection", "backbone.patches"),
)
_NECK = (
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
    first = config.num_stem_maps
    reassemblies = [
        line
        for i, factor in enumerate(config.factors[first:])
        for line in _reassembly_rows(i + first, i, factor)
    ]
    body = prefixed("dpt.", body_rows(), "backbone.")
    heads = _DEPTH if config.num_labels is None else _CLASSES
    return KeyTable(
        (
            *(_STEM if config.stem is not None else ()),
            *body,
            *reassemblies,
            *_NECK,
            *heads,
        ),
        ignored=(
            STEPS,
            r"dpt\.pooler\..*",
            *(() if config.auxiliary else (r"auxiliary_head\..*",)),
        ),
    )


def _reassembly_rows(number: int, ours: int, factor: float) -> Iterator[Row]:
    """What makes a feature map of the file's number of tokens."""
    theirs, own = f"{_REASSEMBLY}.layers.{number}", f"reassemblies.{ours}"
    yield from dense_rows(f"{_REASSEMBLY}.readout_projects.{number}.0", f"{own}.project")
    yield from _conv(f"{theirs}.projection", f"{own}.projection")
    resize, kernel = ("enlarging", Permuted((0, 2, 3, 1))) if factor > 1 else ("shrinking", CONV_2D)
    yield from dense_rows(f"{theirs}.resize", f"{own}.{resize}", kernel)


_BACKBONE = ViTConfig(image_size=(384, 384))


def _read(task: str, fields: Fields) -> Mapping[str, Any]:
    is_hybrid = fields.flag("is_hybrid", False)
    _refuse_other_backbones(fields, hybrids=True)
    stem = _stem(fields) if is_hybrid else None
    has_norms = fields.flag("use_batch_norm_in_fusion_residual")
    return {
        "backbone": _backbone(fields, stem),
        "stem": stem,
        "fusion_bias": fields.flag("use_bias_in_fusion_residual", not has_norms),
        "num_labels": count_labels(fields) if task == "image-segmentation" else None,
    }


def _features(fields: Fields) -> Mapping[str, Any]:
    _refuse_other_backbones(fields)
    return read_pooler(fields)


def _stem(fields: Fields) -> StemConfig:
    """The convolutions of a hybrid."""
    nested = fields.object("backbone_config", Fields({}, fields.where))
    padding = nested.text("global_padding", "SAME").upper()
    known = Fields({**nested.values, "global_padding": padding}, nested.where)
    known.refuse_others(DEFAULTS["bit"])
    stages = len(known.integers("depths", StemConfig().depths))
    channels = list(known.integers("hidden_sizes", StemConfig().stage_channels))[:stages]
    values = Fields({**known.values, "hidden_sizes": channels}, nested.where)
    return StemConfig(
        **read_settings(StemConfig, values.of_family(Defaults(write_settings(StemConfig()))))
    )


def _backbone(fields: Fields, stem: StemConfig | None) -> ViTConfig:
    """The transformer, which takes the last feature map of a stem for its pixels."""
    config = read_model(ViTConfig, fields)
    if stem is None:
        return config
    if config.patch_size != (STRIDE, STRIDE) or any(size % STRIDE for size in config.image_size):
        raise fields.fail(
            "patch_size", f"it must be {STRIDE}, of which the image size is a multiple"
        )
    grid = config.image_size[0] // STRIDE, config.image_size[1] // STRIDE
    return replace(config, image_size=grid, patch_size=(1, 1), num_channels=stem.stage_channels[-1])


def _refuse_other_backbones(fields: Fields, *, hybrids: bool = False) -> None:
    names = ("backbone", *(() if hybrids else ("is_hybrid",)))
    if not fields.flag("is_hybrid", False):
        names += ("backbone_config",)
    for name in names:
        fields.refuse(name, False, why="only a ViT backbone in the same checkpoint is supported")


ARCHITECTURES = (
    Architecture.of(
        "DPTModel",
        _BACKBONE,
        ViT,
        backbone_table,
        family="dpt",
        task="image-feature-extraction",
        read=_features,
    ),
    *(
        Architecture.of(
            f"DPTFor{ending}",
            DPTConfig(),
            DPT,
            key_table,
            task=task,
            read=partial(_read, task),
            parts=(_BACKBONE,),
        )
        for ending, task in (
            ("DepthEstimation", "depth-estimation"),
            ("SemanticSegmentation", "image-segmentation"),
        )
    ),
)
