"""What a model of images is told."""

from typing import NamedTuple


class Picture(NamedTuple):
    """What is to be painted."""

    prompt: str
    negative: str | None  # what is not wanted
    height: int  # in pixels
    width: int  # in pixels
    steps: int  # in which noise becomes an image
    guidance: float | None  # how far it follows the prompt; None = the model's default
    seed: int
