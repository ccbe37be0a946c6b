"""All published names."""

from collections.abc import Mapping

from models.published.decoders import DECODERS, Fields
from models.published.others import OTHERS

PUBLISHED: Mapping[str, Fields] = {**DECODERS, **OTHERS}
"""Name on https://huggingface.co, with the folder of a pipeline's model behind it -> fields."""
