"""Models of the guide to architectures in Neuron's documentation that have no config.json, for
`neuronjax fit launch.fit_guide:FUNCTION`. Nothing here allocates."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from models.detector.config import DetectorConfig
from models.detector.model import Detector
from models.parameters import axis_names_of, merge, split_abstract
from models.recurrent.model import Forecaster, ForecasterConfig
from models.resnet.config import ResNetConfig
from models.sharding import batch_spec, parameter_shardings


def lstm(
    *,
    mesh: AbstractMesh,
    batch: int | None = None,
    dim: int = 1024,
    layers: int = 2,
    times: int = 512,
) -> dict[str, Any]:
    """The state after so many times of 32 series, of `dim` numbers in each layer."""
    config = ForecasterConfig(num_channels=32, dim=dim, num_layers=layers, param_dtype="bfloat16")
    return _of_rows(lambda rngs: Forecaster(config, rngs=rngs), mesh, batch, (times, 32))


def faster_rcnn(*, mesh: AbstractMesh, batch: int | None = None, size: int = 512) -> dict[str, Any]:
    """The objects of square images, by a ResNet-50 with a feature pyramid."""
    config = DetectorConfig(backbone=ResNetConfig(dtype="bfloat16", param_dtype="bfloat16"))
    return _of_rows(lambda rngs: Detector(config, rngs=rngs), mesh, batch, (size, size, 3))


def _of_rows(
    make: Any, mesh: AbstractMesh, batch: int | None, row: tuple[int, ...]
) -> dict[str, Any]:
    """A call of a model with rows of a shape."""
    graph, parameters = split_abstract(lambda: make(nnx.Rngs(0)))
    shardings = parameter_shardings(mesh, parameters, axis_names_of(graph, parameters))
    weights = {
        name: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=shardings[name])
        for name, value in parameters.items()
    }
    count = batch or mesh.shape.get("data", 1)
    rows = PartitionSpec(*batch_spec(mesh.axis_names, rank=1 + len(row)))
    inputs = jax.ShapeDtypeStruct((count, *row), jnp.bfloat16, sharding=NamedSharding(mesh, rows))
    return {
        "fn": jax.jit(lambda weights, inputs: merge(graph, weights)(inputs)),
        "arguments": (weights, inputs),
        "kinds": {"weights": "weights", "inputs": "inputs"},
        "samples": count,
    }
