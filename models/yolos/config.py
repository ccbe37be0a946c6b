"""Dimensions and constants of a YOLOS."""

from dataclasses import dataclass

from models.image_config import PatchConfig
from models.settings import setting


@dataclass(frozen=True)
class YolosConfig(PatchConfig):
    """Every dimension and constant of the model; the default is YOLOS-Base. Labels are classes of
    objects.

    Raises ConfigError if the dimensions do not fit together.
    """

    image_size: tuple[int, int] = setting("image_size", default=(512, 864))
    patch_size: int = setting("patch_size", default=16)
    num_detections: int = setting("num_detection_tokens", default=100)
    mid_positions: bool = setting("use_mid_position_embeddings", default=True)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches that the positions are made for."""
        height, width = self.image_size
        return height // self.patch_size, width // self.patch_size
