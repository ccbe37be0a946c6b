"""What an optimizer changes, what it never sees, and statistics that move without gradients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from launch.training.objectives import Loss
from launch.training.parallelism import Parallelism
from launch.training.step import Training, make_training
from models.losses import cross_entropy
from models.parameters import Parameters, merge, split
from models.pretrained import Described
from tests.models.tiny import random_model

RESNET = {
    "architectures": ["ResNetForImageClassification"],
    "num_channels": 3,
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
    "num_labels": 3,
}
ROWS = 8
STATISTICS = (".mean", ".variance")


@dataclass(frozen=True)
class Classify:
    def __call__(self, model: Any, batch: Mapping[str, Any], keys: jax.Array | None) -> Loss:
        logits = model(batch["pixels"], train=keys is not None)
        return Loss(jnp.sum(cross_entropy(logits, batch["labels"])), jnp.float32(len(logits)), {})


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    pixels = rng.normal(size=(ROWS, 16, 16, 3)).astype(np.float32)
    return {"pixels": pixels, "labels": rng.integers(0, 3, ROWS).astype(np.int32)}


def training(
    devices: list[jax.Device], data: int, trained: set[str] | None = None
) -> tuple[Training, Parameters]:
    model = random_model(RESNET)
    parallelism = Parallelism(data_parallel_size=data)
    made = make_training(
        Described(*model[:3]),
        optax.adamw(1e-2, weight_decay=0.5),
        parallelism,
        mesh=parallelism.mesh(devices),
        batch=jax.eval_shape(batch),
        objective=Classify(),
        trained=trained,
        seed=0,
    )
    return made, {name: np.asarray(value) for name, value in model.parameters.items()}


@pytest.mark.slow
@pytest.mark.parametrize("data", [1, 2])
def test_statistics_are_those_of_the_whole_batch(
    neuron_devices: list[jax.Device], data: int
) -> None:
    made, parameters = training(neuron_devices, data)
    state, values = made.step(made.start(parameters), batch())
    graph, _ = split(random_model(RESNET).architecture.build(random_model(RESNET).config))
    module = merge(graph, jax.tree.map(jnp.asarray, parameters))
    logits = module(jnp.asarray(batch()["pixels"]), train=True)
    _, expected = split(module)
    np.testing.assert_allclose(
        values["loss"], np.mean(cross_entropy(logits, batch()["labels"])), rtol=1e-5
    )
    for name in parameters:
        if name.endswith(STATISTICS):
            np.testing.assert_allclose(state.parameters[name], expected[name], rtol=2e-5, atol=1e-6)
            assert not np.array_equal(expected[name], parameters[name])
    assert not [
        path
        for path, _ in jax.tree_util.tree_leaves_with_path(state.optimizer)
        if str(getattr(path[-1], "key", "")).endswith(STATISTICS)
    ]


def test_evaluation_moves_nothing_and_uses_the_running_statistics(
    neuron_devices: list[jax.Device],
) -> None:
    made, parameters = training(neuron_devices, 1)
    loss = made.evaluate(made.start(parameters), batch())
    model = random_model(RESNET)
    logits = merge(model.graph, model.parameters)(jnp.asarray(batch()["pixels"]))
    expected = jnp.sum(cross_entropy(logits, batch()["labels"]))
    np.testing.assert_allclose(loss.total, expected, rtol=1e-4)


def test_what_is_not_trained_keeps_every_bit(neuron_devices: list[jax.Device]) -> None:
    trained = {"classifier.kernel", "classifier.bias"}
    made, parameters = training(neuron_devices, 2, trained)
    state = made.start(parameters)
    for _ in range(2):
        state, _ = made.step(state, batch())
    changed = {n for n, v in parameters.items() if not np.array_equal(v, state.parameters[n])}
    assert {name for name in changed if not name.endswith(STATISTICS)} == trained
    moments = {
        path[-1].key
        for path, _ in jax.tree_util.tree_leaves_with_path(state.optimizer)
        if hasattr(path[-1], "key")
    }
    assert moments == trained
