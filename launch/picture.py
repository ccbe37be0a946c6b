"""The request for an image."""

from typing import NamedTuple

import numpy as np
from PIL import Image


class Picture(NamedTuple):
    """What to paint."""

    prompt: str
    negative: str | None  # what is not wanted
    height: int  # in pixels
    width: int  # in pixels
    steps: int | None  # in which noise becomes an image; None = as many as the model usually takes
    guidance: float | None  # how far it follows the prompt; None = the model's default
    seed: int
    image: np.ndarray | None = None  # what it starts from, uint8 [height, width, 3]
    mask: np.ndarray | None = None  # of the image, uint8 [height, width]: white is painted anew
    strength: float | None = None  # how much of the image is made anew; None = the model's default
    control: np.ndarray | None = None  # what a ControlNet sees, uint8 [height, width, 3]
    control_scale: float = 1.0  # of what the ControlNet adds
    image_prompt: Image.Image | None = None  # what an IP-Adapter adds to the prompt
    image_prompt_scale: float = 1.0  # of what the denoiser sees of that
