"""DPO and ORPO against the formulas of their papers, in numpy and FP64."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from launch.finetuning.lora import LoRA, adapt
from launch.finetuning.preferences import DirectPreference, OddsRatio
from launch.finetuning.reference import add_copies, with_reference
from launch.training.objectives import Loss, next_tokens
from launch.training.parallelism import Parallelism
from launch.training.step import make_training
from models.parallel.depth import stack
from models.parameters import Parameters, merge
from models.pretrained import Described, Pretrained
from tests.models.tiny import random_model
from tests.quick_compile import QUICK_COMPILE

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
ROWS = 4


def pairs() -> dict[str, dict[str, np.ndarray]]:
    """Answers of other lengths begin at other places; the last row has none and does not count."""
    rng = np.random.default_rng(0)
    batch = {}
    for name, begins in (("chosen", (2, 5, 3, 8)), ("rejected", (2, 4, 6, 3))):
        rows = next_tokens(rng.integers(0, 48, (ROWS, 9)).astype(np.int32))
        places = np.arange(8)[None]
        answer = (places >= np.array(begins)[:, None]) & (places < 7)
        batch[name] = rows | {"weights": answer.astype(np.float32)}
    return batch


def log_probabilities(model: Pretrained, text: dict[str, np.ndarray]) -> np.ndarray:
    """Of every token, FP64 [B, T]."""
    logits = jax.jit(merge(model.graph, model.parameters), compiler_options=QUICK_COMPILE)(
        text["tokens"]
    )
    wide = np.asarray(logits, np.float64)
    wide = wide - np.log(np.sum(np.exp(wide), axis=-1, keepdims=True))
    return np.take_along_axis(wide, text["targets"][..., None], -1)[..., 0]


@pytest.fixture(scope="module")
def models() -> tuple[Pretrained, Pretrained]:
    """The model that is trained, and the one that training began with."""
    return random_model(LLAMA, seed=1, stddev=0.1), random_model(LLAMA, seed=2, stddev=0.1)


@pytest.fixture(scope="module")
def answers(models: tuple[Pretrained, Pretrained]) -> dict[str, list[np.ndarray]]:
    """The logarithms of the probabilities of the answers that count, [3] each, by both models; and
    their lengths."""
    batch = pairs()
    return {
        name: [
            *(np.sum(log_probabilities(m, text) * text["weights"], axis=1)[:3] for m in models),
            np.sum(text["weights"], axis=1)[:3],
        ]
        for name, text in batch.items()
    }


def losses(objective: Any, described: Described, parameters: Parameters) -> Loss:
    graph, _ = described.architecture.abstract(described.config)
    keys = jax.random.split(jax.random.key(0), ROWS)

    @partial(jax.jit, compiler_options=QUICK_COMPILE)
    def run(parameters: Parameters, batch: Any) -> Loss:
        return objective(merge(graph, parameters), batch, keys)

    return run(parameters, pairs())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_direct_preference(
    models: tuple[Pretrained, Pretrained], answers: dict[str, list[np.ndarray]], smoothing: float
) -> None:
    beta = 0.3
    model, reference = models
    parameters = add_copies(model.parameters) | {
        f"reference.{name}": value for name, value in reference.parameters.items()
    }
    objective = DirectPreference(beta=beta, label_smoothing=smoothing)
    loss = losses(objective, with_reference(Described(*model[:3])), parameters)
    (chosen, chosen_before, _), (rejected, rejected_before, _) = answers.values()
    margin = beta * ((chosen - chosen_before) - (rejected - rejected_before))
    expected = (1 - smoothing) * np.log1p(np.exp(-margin)) + smoothing * np.log1p(np.exp(margin))
    assert loss.weight == 3
    np.testing.assert_allclose(loss.total, expected.sum(), rtol=1e-4)
    np.testing.assert_allclose(loss.metrics["margin"], margin.sum(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(loss.metrics["accuracy"], np.sum(margin > 0))
    reward = beta * (rejected - rejected_before)
    np.testing.assert_allclose(loss.metrics["rejected_reward"], reward.sum(), rtol=1e-3, atol=1e-4)


def test_with_adapters_the_reference_is_the_model_without_them(
    models: tuple[Pretrained, Pretrained],
) -> None:
    model, _ = models
    adapted = adapt(Described(*model[:3]), LoRA(rank=2, dropout=0.0))
    rng = np.random.default_rng(0)
    added = {
        name: jnp.asarray(0.3 * rng.normal(size=leaf.shape), leaf.dtype)
        for name, leaf in adapted.parameters().items()
        if name not in model.parameters
    }
    by_adapters = losses(DirectPreference(), adapted.model, {**model.parameters, **added})
    # The same with a whole copy as the reference.
    described = with_reference(adapted.model)
    zeros = {name: jnp.zeros_like(value) for name, value in added.items()}
    both = {**model.parameters, **added} | {
        f"reference.{name}": value for name, value in {**model.parameters, **zeros}.items()
    }
    by_copy = losses(DirectPreference(), described, both)
    np.testing.assert_allclose(by_adapters.total, by_copy.total, rtol=1e-6)
    assert abs(float(by_adapters.metrics["margin"])) > 0.01


def test_odds_ratio(
    models: tuple[Pretrained, Pretrained], answers: dict[str, list[np.ndarray]]
) -> None:
    model, _ = models
    loss = losses(OddsRatio(factor=0.4), Described(*model[:3]), model.parameters)
    means = [total / length for total, _, length in answers.values()]
    odds = [np.exp(mean) / (1 - np.exp(mean)) for mean in means]
    ratio = np.log(odds[0] / odds[1])
    expected = -means[0] + 0.4 * np.log1p(np.exp(-ratio))
    assert loss.weight == 3
    np.testing.assert_allclose(loss.total, expected.sum(), rtol=1e-4)
    np.testing.assert_allclose(loss.metrics["log_odds_ratio"], ratio.sum(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(loss.metrics["nats"], -means[0].sum(), rtol=1e-4)


MESHES = {
    "one core": Parallelism(),
    "fsdp and tensor": Parallelism(fully_sharded_size=2, tensor_parallel_size=2),
    "data, tensor, scanned": Parallelism(
        data_parallel_size=2, tensor_parallel_size=2, scan_layers=True
    ),
}


@pytest.mark.slow
def test_the_copy_is_split_like_the_model(
    neuron_devices: list[jax.Device], models: tuple[Pretrained, Pretrained]
) -> None:
    """Two steps of DPO give the same losses on every mesh, and leave the copy as it is."""
    model, reference = models
    described = with_reference(Described(*model[:3]))
    weights = add_copies(model.parameters) | {
        f"reference.{name}": value for name, value in reference.parameters.items()
    }
    losses = {}
    for name, parallelism in MESHES.items():
        training = make_training(
            described,
            optax.sgd(0.1),
            parallelism,
            mesh=parallelism.mesh(neuron_devices),
            batch=jax.eval_shape(pairs),
            objective=DirectPreference(beta=0.3),
            trained=model.parameters.keys(),
            seed=0,
        )
        held = {path: np.asarray(value) for path, value in weights.items()}
        if parallelism.scan_layers:
            held = {path: np.asarray(value) for path, value in stack(held).items()}
        state = training.start(jax.device_put(held, training.shardings.parameters))
        losses[name] = []
        for _ in range(2):
            state, values = training.step(state, pairs())
            losses[name].append(float(values["loss"]))
        for path, value in held.items():
            same = np.array_equal(state.parameters[path], value)
            assert same == path.startswith("reference."), path
    for name in MESHES:
        np.testing.assert_allclose(losses[name], losses["one core"], rtol=1e-4, err_msg=name)
