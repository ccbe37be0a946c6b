"""Faster R-CNN against what torchvision's finds, and non-maximum suppression against its words."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import save_file

from models.detector.boxes import greatest, overlaps, suppressed
from models.detector.config import DetectorConfig
from models.detector.model import Detector, Objects
from models.detector.weights import key_table
from models.errors import ConfigError, InputError
from models.parameters import Parameters, axis_names_of, merge, split
from models.resnet.config import ResNetConfig
from models.sharding import parameter_shardings
from models.weights.load import load_parameters
from models.weights.safetensors import read_header
from tests.models import detector_reference as reference

CONFIG = DetectorConfig(
    backbone=ResNetConfig(depths=(1, 1, 1, 1)),
    dim=reference.DIM,
    anchor_sizes=reference.ANCHORS,
    level_proposals=reference.LEVEL_PROPOSALS,
    num_proposals=reference.PROPOSALS,
    hidden_dim=reference.HIDDEN,
    num_labels=reference.LABELS,
    num_candidates=reference.PROPOSALS * (reference.LABELS - 1),
    num_objects=reference.OBJECTS,
)
ANSWERS = json.loads(reference.ANSWERS.read_text())


@jax.jit(static_argnums=0)
def run(graph: Any, parameters: Parameters, pixels: jax.Array) -> Objects:
    return merge(graph, parameters)(pixels)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of torchvision's keys, some as they were called once."""
    file = tmp_path_factory.mktemp("detector") / "model.safetensors"
    tensors = {name: reference.numbers(name, tuple(s)) for name, s in ANSWERS["shapes"].items()}
    old = {"rpn.head.conv.0.0.weight": "rpn.head.conv.weight"}
    save_file({old.get(name, name): tensor for name, tensor in tensors.items()}, file)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "neuron"])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2)], ids=["alone", "2 x 2"])
def test_objects_are_those_of_torchvision(
    checkpoint: Path, platform: str, sizes: tuple[int, int]
) -> None:
    count = sizes[0] * sizes[1]
    mesh = Mesh(np.array(jax.devices(platform)[:count]).reshape(sizes), ("data", "model"))
    graph, abstract = split(nnx.eval_shape(lambda: Detector(CONFIG, rngs=nnx.Rngs(0))))
    shardings = parameter_shardings(mesh, abstract, axis_names_of(graph, abstract))
    parameters = load_parameters(read_header(checkpoint), key_table(CONFIG), abstract, shardings)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    found = run(graph, parameters, jax.device_put(reference.pixels(), rows))
    for i, expected in enumerate(ANSWERS["objects"]):
        count = len(expected["scores"])
        assert 0 < count == np.count_nonzero(found.labels[i])
        np.testing.assert_array_equal(found.labels[i, :count], expected["labels"])
        np.testing.assert_allclose(found.scores[i, :count], expected["scores"], atol=1e-4)
        np.testing.assert_allclose(found.boxes[i, :count], expected["boxes"], atol=2e-2)


def test_suppression_keeps_the_first_of_what_overlaps() -> None:
    rng = np.random.default_rng(0)
    begin = rng.uniform(0, 40, (60, 2))
    boxes = np.concatenate([begin, begin + rng.uniform(5, 30, (60, 2))], axis=1).astype(np.float32)
    groups, real = rng.integers(0, 3, 60), rng.uniform(size=60) < 0.8
    kept: list[int] = []
    for i in np.flatnonzero(real):
        rivals = [k for k in kept if groups[k] == groups[i]]
        if all(_overlap(boxes[i], boxes[k]) <= 0.3 for k in rivals):
            kept.append(int(i))
    dropped = jax.jit(partial(suppressed, most=0.3))(boxes, groups, real)
    assert 0 < len(kept) < np.count_nonzero(real)
    np.testing.assert_array_equal(np.flatnonzero(~dropped), kept)


def _overlap(box: np.ndarray, other: np.ndarray) -> float:
    """The common area of two boxes over what they cover."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    common = max(width, 0) * max(height, 0)
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (box, other)]
    return float(common / (sum(areas) - common))


@pytest.mark.parametrize("size", [100, 20_000])
def test_the_greatest_of_long_rows(size: int) -> None:
    rows = np.random.default_rng(0).integers(0, 500, (2, size)).astype(np.float32)
    for ours, theirs in zip(greatest(rows, 30), jax.lax.top_k(rows, 30), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_boxes_that_share_half() -> None:
    box = np.array([0, 0, 2, 2], np.float32)
    others = np.array([[0, 0, 2, 2], [1, 0, 3, 2], [2, 0, 4, 2]], np.float32)
    np.testing.assert_allclose(overlaps(box, others), [1, 1 / 3, 0])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 sizes, but the feature pyramid has 5 levels"):
        DetectorConfig(anchor_sizes=(8, 16))
    model = nnx.eval_shape(lambda: Detector(CONFIG, rngs=nnx.Rngs(0)))
    with pytest.raises(InputError, match="sides of 48 x 64"):
        nnx.eval_shape(lambda m: m(np.zeros((1, 48, 64, 3), np.float32)), model)
