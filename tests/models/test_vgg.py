"""VGG against torchvision's."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh
from safetensors.numpy import save_file

from models.errors import InputError
from models.parameters import Parameters, axis_names_of, merge, split
from models.sharding import parameter_shardings
from models.vgg.model import DEPTHS, VGG, VGGConfig, key_table
from models.weights.load import load_parameters
from models.weights.safetensors import read_header
from tests.models import vgg_reference as reference
from tests.models.detector_reference import numbers

CONFIG = VGGConfig(
    channels=reference.CHANNELS,
    depths=reference.DEPTHS,
    hidden_dim=reference.HIDDEN,
    num_labels=reference.LABELS,
)


@jax.jit(static_argnums=0)
def run(graph: Any, parameters: Parameters, pixels: jax.Array) -> jax.Array:
    return merge(graph, parameters)(pixels)


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2)], ids=["alone", "2 x 2"])
def test_logits_are_those_of_torchvision(
    platform: str, sizes: tuple[int, int], tmp_path: Path
) -> None:
    answers = json.loads(reference.ANSWERS.read_text())
    file = tmp_path / "model.safetensors"
    save_file({name: numbers(name, tuple(s)) for name, s in answers["shapes"].items()}, file)
    devices = np.array(jax.devices(platform)[: sizes[0] * sizes[1]])
    mesh = Mesh(devices.reshape(sizes), ("data", "model"))
    graph, abstract = split(nnx.eval_shape(lambda: VGG(CONFIG, rngs=nnx.Rngs(0))))
    shardings = parameter_shardings(mesh, abstract, axis_names_of(graph, abstract))
    parameters = load_parameters(read_header(file), key_table(CONFIG), abstract, shardings)
    with jax.set_mesh(mesh):
        logits = run(graph, parameters, reference.pixels())
    np.testing.assert_allclose(logits, answers["logits"], rtol=1e-4, atol=1e-4)


# As published with the paper, in millions.
@pytest.mark.parametrize(
    ("name", "count"), [("VGG11", 132.9), ("VGG13", 133.0), ("VGG16", 138.4), ("VGG19", 143.7)]
)
def test_parameters_are_as_many_as_published(name: str, count: float) -> None:
    config = VGGConfig(depths=DEPTHS[name])
    _, parameters = split(nnx.eval_shape(lambda: VGG(config, rngs=nnx.Rngs(0))))
    assert sum(leaf.size for leaf in parameters.values()) / 1e6 == pytest.approx(count, abs=0.05)


def test_other_sizes_are_refused() -> None:
    model = nnx.eval_shape(lambda: VGG(CONFIG, rngs=nnx.Rngs(0)))
    with pytest.raises(InputError, match="is 64 x 64 pixels, but this VGG sees 224 x 224"):
        nnx.eval_shape(lambda m: m(np.zeros((1, 64, 64, 3), np.float32)), model)
