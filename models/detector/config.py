"""Dimensions and constants of a Faster R-CNN."""

from dataclasses import dataclass, field

from models.errors import ConfigError
from models.resnet.config import ResNetConfig
from models.settings import COUNT, WIDTH, Range, check_settings, setting

RATIOS = (0.5, 1.0, 2.0)
"""Height over width of the anchors of a place."""
_SHARE, _LEAST = Range(0, 1), Range(1e-3, 1)


@dataclass(frozen=True)
class DetectorConfig:
    """Every dimension and constant; the default is torchvision's `fasterrcnn_resnet50_fpn`.

    Numbers of proposals and objects are those of a program, which has static shapes: where there
    are fewer, the rest is marked as none. Raises ConfigError if the dimensions do not fit together.
    """

    backbone: ResNetConfig = field(default_factory=ResNetConfig)
    dim: int = setting(None, "channels of the feature pyramid", WIDTH, default=256)
    anchor_sizes: tuple[int, ...] = setting(
        None, "side of the anchors of each level, in pixels", WIDTH, default=(32, 64, 128, 256, 512)
    )
    level_proposals: int = setting(None, "proposals of each level", WIDTH, default=1000)
    num_proposals: int = setting(None, "proposals that the second stage sees", WIDTH, default=1000)
    proposal_overlap: float = setting(None, "most overlap of proposals", _SHARE, default=0.7)
    pooled_size: int = setting(None, "height and width of a pooled region", WIDTH, default=7)
    hidden_dim: int = setting(None, "width of the second stage", WIDTH, default=1024)
    num_labels: int = setting(None, "classes, of which the first is none", WIDTH, default=91)
    least_score: float = setting(None, "score that an object exceeds", _LEAST, default=0.05)
    object_overlap: float = setting(None, "most overlap of objects", _SHARE, default=0.5)
    num_candidates: int = setting(
        None, "regions with a class that compete to be objects", WIDTH, default=2000
    )
    num_objects: int = setting(None, "objects of an image", COUNT, default=100)

    def __post_init__(self) -> None:
        check_settings(self)
        levels = len(self.backbone.stage_channels) + 1
        if len(self.anchor_sizes) != levels:
            raise ConfigError(
                f"anchor_sizes has {len(self.anchor_sizes)} sizes, but the feature pyramid has "
                f"{levels} levels"
            )
