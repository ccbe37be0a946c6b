"""A model that is ready to answer: what does the work, and what its clients' process must know."""

from typing import NamedTuple

from launch.serving.desk import Desk
from launch.serving.http.site import Recipe


class Backend(NamedTuple):
    """What the process with the device serves."""

    recipe: Recipe
    desk: Desk
