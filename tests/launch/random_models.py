"""Directories of random models, as a user has them."""

from pathlib import Path
from typing import Any

from models import pretrained
from models.weights.fields import Fields
from tests.models.tiny import random_model


def write_model(directory: Path, name: str, config: dict[str, Any]) -> Path:
    """The directory of a model of architecture `name`."""
    model = random_model({**config, "architectures": [name]})
    if model.architecture.library == "diffusers":
        fields = Fields({**config, "_class_name": name}, "the test")
        model = model._replace(fields=fields)
    pretrained.save(directory, model)
    return directory
