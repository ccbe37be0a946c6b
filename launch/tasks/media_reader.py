"""Image and sound models on a mesh, and their input images."""

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
    """The model in the request's directory, with its weights on the mesh.

    Raises MeshError, ConfigError, ShardingError or WeightsError for what does not fit.
    """
    described = describe(request.directory, tasks=request.tasks)
    mesh = mesh_of(request)
    say(f"{described.architecture.name} of {request.directory} on mesh {dict(mesh.shape)}")
    return load_requested(request, mesh)


def load_requested(request: Request, mesh: Mesh) -> Pretrained:
    """The model in the request's directory, on a mesh."""
    return load_with_progress(
        request.directory,
        mesh,
        dtype=request.dtype,
        tasks=request.tasks,
        scan_layers=request.scan_layers,
        pad=True,
    )


def mesh_of(request: Request) -> Mesh:
    """The mesh of --mesh; by default one device, which is enough for one input at a time."""
    return make_mesh(parse_mesh(request.mesh or ONE_DEVICE))


def read_pixels(directory: Path, file: Path) -> np.ndarray:
    """Pixels FP32 [1, H, W, 3] of an image, preprocessed as the checkpoint in `directory`
    requires."""
    return pixels_of(open_image(file), read_preprocessing(directory))[None]


def labels_of(model: Pretrained, count: int) -> list[str]:
    """The class names from config.json."""
    names = model.fields.object("id2label", None)
    named: dict[str, Any] = {} if names is None else dict(names.values)
    return [str(named.get(str(i), f"LABEL_{i}")) for i in range(count)]
