"""Models of images and sound on a mesh, and the images they work on."""

from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from launch.loading import load_with_progress
from launch.meshes import make_mesh, parse_mesh
from launch.program import say
from launch.tasks.task import Request
from models.images import open_image, pixels_of, read_preprocessing
from models.pretrained import Pretrained, describe

ONE_DEVICE = "data=1,model=1"


def open_model(request: Request) -> Pretrained:
    """The model of the request's directory, its weights on the mesh.

    Raises MeshError, ConfigError, ShardingError or WeightsError for what does not suit.
    """
    described = describe(request.directory)
    mesh = mesh_of(request)
    say(f"{described.architecture.name} of {request.directory} on mesh {dict(mesh.shape)}")
    return load_with_progress(request.directory, mesh, dtype=request.dtype)


def mesh_of(request: Request) -> Mesh:
    """The mesh of --mesh; without it one device, which one input at a time cannot outgrow."""
    return make_mesh(parse_mesh(request.mesh or ONE_DEVICE))


def read_pixels(directory: Path, file: Path) -> np.ndarray:
    """Pixels FP32 [1, H, W, 3] of an image, as the checkpoint in `directory` wants them."""
    return pixels_of(open_image(file), read_preprocessing(directory))[None]


def labels_of(model: Pretrained, count: int) -> list[str]:
    """The names of the classes, as config.json has them."""
    names = model.fields.object("id2label", None)
    named: dict[str, Any] = {} if names is None else dict(names.values)
    return [str(named.get(str(i), f"LABEL_{i}")) for i in range(count)]
