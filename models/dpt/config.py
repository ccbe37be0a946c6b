"""Dimensions and constants of a DPT."""

import math
from dataclasses import dataclass, field

from models.dpt.stem import STRIDE, StemConfig
from models.errors import ConfigError
from models.settings import ModelConfig, OneOf, Range, setting
from models.vit.config import ViTConfig

READOUTS = OneOf(("ignore", "add", "project"))
PROJECTED = 256  # channels of the projection in front of the head for depth


@dataclass(frozen=True)
class DPTConfig(ModelConfig):
    """Every dimension and constant of the model; the default is DPT-Base for depth.

    Raises ConfigError if the dimensions do not fit together.
    """

    backbone: ViTConfig = field(default_factory=lambda: ViTConfig(image_size=(384, 384)))
    blocks: tuple[int, ...] = setting(
        "backbone_out_indices",
        "indices of the backbone layers whose outputs are used",
        Range(0, 10_000),
        default=(2, 5, 8, 11),
    )
    readout: str = setting("readout_type", "use of the class token", READOUTS, default="project")
    factors: tuple[float, ...] = setting("reassemble_factors", default=(4, 2, 1, 0.5))
    neck_dims: tuple[int, ...] = setting("neck_hidden_sizes", default=(96, 192, 384, 768))
    fusion_dim: int = setting("fusion_hidden_size", default=256)
    head_index: int = setting("head_in_index", default=-1)
    batch_norm: bool = setting("use_batch_norm_in_fusion_residual", default=False)
    fusion_bias: bool = True  # of these convolutions
    projection: bool = setting("add_projection", default=False)
    auxiliary: bool = setting("use_auxiliary_head", default=True)
    num_labels: int | None = None  # classes of places; None = their depth
    # Convolutions that make the "pixels" of the backbone; the first feature maps are theirs.
    stem: StemConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.chosen) == len(self.neck_dims) == len(self.factors):
            raise ConfigError(
                "blocks, neck_dims and factors must have the same length, but blocks has "
                f"{len(self.chosen)} different indices, {list(self.chosen)}, neck_dims has "
                f"{len(self.neck_dims)} and factors has {len(self.factors)}"
            )
        if self.chosen[-1] >= self.backbone.num_layers:
            raise ConfigError(
                f"blocks includes layer {self.chosen[-1]}, but the backbone has "
                f"{self.backbone.num_layers} layers, counted from 0"
            )
        rows, columns = self.backbone.window
        sizes = self.backbone.image_size, self.backbone.patch_size
        if rows != columns or any(math.remainder(*pair) for pair in zip(*sizes, strict=True)):
            raise ConfigError(
                f"the backbone's image_size={sizes[0]} must be a square multiple of "
                f"patch_size={sizes[1]}"
            )
        for factor in self.factors:
            if (factor if factor > 1 else 1 / factor) % 1:
                raise ConfigError(
                    f"factors includes {factor}, but every factor must be a whole number or 1 "
                    "divided by one"
                )
        if not -len(self.factors) <= self.head_index < len(self.factors):
            raise ConfigError(
                f"head_index={self.head_index} is out of range: there are {len(self.factors)} "
                "fused feature maps"
            )
        if self.stem is not None and self.readout != "project":
            raise ConfigError(f"readout={self.readout!r} must be 'project' for a hybrid")
        if self.projection and self.fusion_dim != PROJECTED:
            raise ConfigError(
                f"projection needs fusion_dim={PROJECTED}, but fusion_dim={self.fusion_dim}"
            )

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        height, width = self.backbone.image_size
        scale = 1 if self.stem is None else STRIDE
        return scale * height, scale * width

    @property
    def num_channels(self) -> int:
        """The number of channels of the images."""
        return (self.stem or self.backbone).num_channels

    @property
    def num_stem_maps(self) -> int:
        """How many feature maps come from the convolutions."""
        return 0 if self.stem is None else len(self.stem.depths) - 1

    @property
    def chosen(self) -> tuple[int, ...]:
        """The blocks whose outputs are used, in their order."""
        return tuple(sorted(set(self.blocks)))
