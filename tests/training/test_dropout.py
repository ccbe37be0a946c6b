"""Dropout of whole models: where it strikes, and that no mesh and no way of running changes it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from launch.errors import LaunchError
from launch.source import byte_level
from launch.training.dropout import NO_DROPOUT, DropoutSettings, drop_hidden
from launch.training.kernels import NKI
from launch.training.objectives import next_tokens, text_batch
from launch.training.parallelism import Parallelism
from launch.training.step import Training, make_training
from models.decoder.config import DecoderConfig
from models.hashed_random import HASHED
from models.layers.attention import AttentionCall, dot_product_attention
from models.layers.dropout import Dropout, set_dropout
from models.layers.masks import Visibility
from models.layers.moe import Experts
from models.parallel.depth import stack
from models.parameters import merge, split
from tests.models.tiny import random_model
from tests.quick_compile import QUICK_COMPILE

STEPS, ROWS, LENGTH = 3, 8, 16
CONFIG = DecoderConfig(
    vocab_size=32, num_layers=2, dim=32, hidden_dim=32, num_heads=8, num_kv_heads=4, head_dim=4,
    max_seq_len=LENGTH, initializer_range=0.1, attention_out_bias=True,
)  # fmt: skip
MODEL = byte_level(DecoderConfig()).model
EXPERTS = replace(CONFIG, experts=Experts(8, 2, 16, shared_dim=16, gated_inputs=True))
BOTH = DropoutSettings(hidden_dropout=0.2, attention_dropout=0.3)
HIDDEN = DropoutSettings(hidden_dropout=0.2)
TOKENS = np.random.default_rng(0).integers(0, 32, (STEPS, ROWS, LENGTH + 1)).astype(np.int32)
MESHES: Mapping[str, tuple[DecoderConfig, DropoutSettings, Mapping[str, Any]]] = {
    "micro-batches, recomputed": (
        CONFIG,
        BOTH,
        {"data_parallel_size": 2, "gradient_accumulation_steps": 2, "recompute": "selective"},
    ),
    "fully sharded, tensor, scan": (
        CONFIG,
        BOTH,
        {"fully_sharded_size": 2, "tensor_parallel_size": 4, "scan_layers": True},
    ),
    "tensor, repeated keys, whole stream": (
        CONFIG,
        BOTH,
        {"tensor_parallel_size": 8, "sequence_parallel": False},
    ),
    "ring, tensor": (CONFIG, HIDDEN, {"context_parallel_size": 2, "tensor_parallel_size": 2}),
    "1F1B, data": (CONFIG, BOTH, {"pipeline_parallel_size": 2, "data_parallel_size": 2}),
    "experts, all-to-all, tensor": (
        EXPERTS,
        HIDDEN,
        {
            "expert_parallel_size": 2,
            "context_parallel_size": 2,
            "context_parallel_method": "all_to_all",
            "tensor_parallel_size": 2,
        },
    ),
}


def training_of(
    config: DecoderConfig,
    dropout: DropoutSettings,
    parallelism: Parallelism,
    devices: list[jax.Device],
    **settings: Any,
) -> Training:
    parallelism = parallelism.fitted(config)
    return make_training(
        MODEL._replace(config=config),
        optax.adam(1e-2),
        parallelism,
        mesh=parallelism.mesh(devices),
        batch=text_batch(ROWS, LENGTH),
        dropout=dropout,
        seed=0,
        **settings,
    )


@cache
def first_weights(config: DecoderConfig) -> dict[str, np.ndarray]:
    training = training_of(config, HIDDEN, Parallelism(), jax.devices("cpu"))
    return {path: np.asarray(x) for path, x in training.init().parameters.items()}


def curve(
    config: DecoderConfig,
    dropout: DropoutSettings,
    parallelism: Parallelism,
    devices: list[jax.Device],
) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step."""
    training = training_of(config, dropout, parallelism, devices)
    weights: Any = first_weights(config)
    weights = stack(weights, training.order) if parallelism.stacks else weights
    state = training.start(jax.device_put(weights, training.shardings.parameters))
    lowered = training.step.lower(training.state, training.batch)
    step = lowered.compile(compiler_options=QUICK_COMPILE)
    values = []
    for tokens in TOKENS:
        batch = jax.device_put(next_tokens(tokens), training.batch_shardings)
        state, reported = step(state, batch)
        values.append((float(reported["loss"]), float(reported["grad_norm"])))
    return values


@cache
def on_one_core(
    config: DecoderConfig, dropout: DropoutSettings = NO_DROPOUT
) -> list[tuple[float, float]]:
    return curve(config, dropout, Parallelism(), jax.devices("cpu"))


QUICK = ("fully sharded, tensor, scan", "1F1B, data")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MESHES]
)
def test_what_is_dropped_does_not_depend_on_the_mesh(
    name: str, neuron_devices: list[jax.Device]
) -> None:
    config, dropout, sizes = MESHES[name]
    got = curve(config, dropout, Parallelism(**sizes), neuron_devices)
    np.testing.assert_allclose(got, on_one_core(config, dropout), rtol=1e-4)


@pytest.mark.slow
def test_both_kinds_change_the_losses_and_not_the_evaluation() -> None:
    kinds = [HIDDEN, DropoutSettings(attention_dropout=0.3), BOTH]
    first_losses = {on_one_core(CONFIG, kind)[0][0] for kind in kinds}
    assert len(first_losses) == len(kinds)
    evaluated = []
    for kind in (BOTH, NO_DROPOUT):
        training = training_of(CONFIG, kind, Parallelism(), jax.devices("cpu"))
        weights = jax.device_put(first_weights(CONFIG), training.shardings.parameters)
        batch = jax.device_put(next_tokens(TOKENS[0]), training.batch_shardings)
        evaluated.append(float(training.evaluate(training.start(weights), batch).total))
    assert evaluated[0] == evaluated[1]


def test_weights_of_attention_that_are_kept_grow() -> None:
    """Against FP64, with the mask that the layer draws."""
    rng = np.random.default_rng(1)
    batch, length, heads, kv_heads, width = 2, 6, 4, 2, 8
    query = rng.normal(size=(batch, length, heads, width))
    keys, values = rng.normal(size=(2, batch, length, kv_heads, width))
    layer = Dropout(0.25)
    layer.keys = jax.random.split(jax.random.key(0, impl=HASHED), batch)
    arrays = (jnp.asarray(x, jnp.float32) for x in (query, keys, values))
    got = dot_product_attention(*arrays, AttentionCall(Visibility(), dropout=layer))
    mask = np.asarray(layer(jnp.ones((batch, length, heads, length)))) != 0
    assert 0.5 < mask.mean() < 0.95
    shared = [np.repeat(x, heads // kv_heads, axis=2) for x in (keys, values)]
    scores = np.einsum("btnh,bsnh->btns", query, shared[0]) / np.sqrt(width)
    scores = np.where(np.tri(length, dtype=bool)[None, :, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = mask * weights / weights.sum(-1, keepdims=True) / 0.75
    expected = np.einsum("btns,bsnh->btnh", weights, shared[1])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("architecture", "dropped"),
    [
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, 4),
        ({"architectures": ["T5EncoderModel"], "model_type": "t5", "d_ff": 48}, 4),
    ],
)
def test_every_layer_of_a_block_drops(architecture: dict[str, Any], dropped: int) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 32, "d_model": 32, "intermediate_size": 48}
    layers = {"num_hidden_layers": 2, "num_layers": 2, "num_attention_heads": 4, "num_heads": 4}
    more = {"d_kv": 8, "max_position_embeddings": 16, "n_positions": 16}
    known = random_model({**architecture, **sizes, **layers, **more})
    module: Any = known.architecture.build(known.config)
    assert drop_hidden(module, 0.5)
    tokens = jnp.asarray(TOKENS[0, :, :8])
    graph, parameters = split(module)

    @partial(jax.jit, compiler_options=QUICK_COMPILE)
    def run(keys: jax.Array | None) -> Any:
        model = merge(graph, parameters)
        if keys is not None:
            set_dropout(model, keys)
        return jax.tree.leaves(model(tokens))[0]

    keys = jax.random.split(jax.random.key(0, impl=HASHED), ROWS)
    assert sum(isinstance(m, Dropout) for _, m in nnx.iter_modules(module)) == dropped
    assert not np.allclose(run(None), run(keys))


@pytest.mark.parametrize(
    ("dropout", "sizes", "settings", "message"),
    [
        (BOTH, {"context_parallel_size": 2}, {}, "context=2 does not support --attention_dropout"),
        (BOTH, {}, {"kernels": NKI}, "--kernels=nki has no attention with --attention_dropout"),
    ],
)
def test_what_no_layer_can_drop_is_refused(
    dropout: DropoutSettings, sizes: dict[str, int], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        training_of(CONFIG, dropout, Parallelism(**sizes), jax.devices("cpu"), **settings)
