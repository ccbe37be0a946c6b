"""The laws of encoders of text, over all kinds of them, from random weights."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.errors import InputError
from models.layers.relative import buckets_of_distances
from models.parameters import Parameters, merge
from models.pretrained import Pretrained
from models.sharding import parameter_shardings
from tests.models.parity.text_cases import FAMILIES
from tests.models.tiny import random_model
from tests.quick_compile import QUICK_COMPILE

TOKENS = np.random.default_rng(0).integers(3, 96, (4, 10)).astype(np.int32)
# Two or three blocks of FP32 roundings on numbers of up to three or so.
FP32 = {"rtol": 1e-5, "atol": 3e-5}


def build(
    name: str,
    family: str,
    changes: dict[str, Any] | None = None,
    stddev: float = 0.3,
    **options: Any,
) -> Pretrained:
    """A model with weights far larger than in training, so that every part matters."""
    values = {**FAMILIES[family], **(changes or {}), "architectures": [name]}
    return random_model(values, stddev=stddev, **options)


@partial(jax.jit, static_argnums=0, compiler_options=QUICK_COMPILE)
def run(graph: nnx.GraphDef, parameters: Parameters, inputs: dict[str, jax.Array]):
    return merge(graph, parameters)(**inputs)


def outputs(model: Pretrained, **inputs: np.ndarray) -> dict[str, jax.Array]:
    return run(model.graph, model.parameters, inputs)


@cache
def filled(family: str) -> tuple[Pretrained, np.ndarray]:
    """A model that fills masks, and its logits of TOKENS."""
    model = build(f"{family}ForMaskedLM", family)
    return model, np.asarray(outputs(model, tokens=TOKENS)["logits"])


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family: str) -> None:
    model = build(f"{family}Model", family)
    expected = outputs(model, tokens=TOKENS)
    junk = np.random.default_rng(1).integers(3, 96, (4, 6)).astype(np.int32)
    padded = np.concatenate([TOKENS, junk], axis=1)
    real = np.broadcast_to(np.arange(16) < 10, padded.shape)
    got = outputs(model, tokens=padded, real=real)
    np.testing.assert_allclose(got["hidden"][:, :10], expected["hidden"], **FP32)
    if "pooled" in expected:
        np.testing.assert_allclose(got["pooled"], expected["pooled"], **FP32)
    seen = outputs(model, tokens=padded, real=np.ones_like(real))
    moved = np.abs(seen["hidden"][:, :10] - expected["hidden"]).max()
    assert moved > 100 * FP32["atol"]  # what is not masked is seen


@pytest.mark.parametrize("family", FAMILIES)
def test_sharded_is_unsharded(devices: list[jax.Device], family: str) -> None:
    model, expected = filled(family)
    mesh = jax.sharding.Mesh(np.array(devices[:8]).reshape(2, 2, 2), ("data", "fsdp", "model"))
    shardings = parameter_shardings(mesh, model.parameters, model.axis_names())
    assert sum(not sharding.is_fully_replicated for sharding in shardings.values()) > 10
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("data", "fsdp")))
    parameters = jax.device_put(model.parameters, shardings)
    got = run(model.graph, parameters, {"tokens": jax.device_put(TOKENS, rows)})["logits"]
    np.testing.assert_allclose(got, expected, **FP32)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_close_to_float32(family: str) -> None:
    name = f"{family}ForMaskedLM"
    exact = outputs(build(name, family, stddev=0.1), tokens=TOKENS)["logits"]
    rough = outputs(build(name, family, stddev=0.1, dtype="bfloat16"), tokens=TOKENS)["logits"]
    assert rough.dtype == jnp.float32
    assert not np.array_equal(rough, exact)
    # bfloat16 has 8 bits: each of some ten roundings in a row costs up to 0.4 %.
    np.testing.assert_allclose(rough, exact, atol=0.04 * float(jnp.max(jnp.abs(exact))))


def test_choices_are_independent_texts() -> None:
    model = build("BertForMultipleChoice", "Bert")
    choices = np.random.default_rng(2).integers(3, 96, (2, 3, 10)).astype(np.int32)
    changed = choices.copy()
    changed[:, 1] = changed[::-1, 1]
    before = outputs(model, tokens=choices)["logits"]
    after = outputs(model, tokens=changed)["logits"]
    assert before.shape == (2, 3)
    np.testing.assert_allclose(after[:, ::2], before[:, ::2], **FP32)
    np.testing.assert_allclose(after[:, 1], before[::-1, 1], **FP32)


def test_local_layers_see_their_neighbourhood_alone() -> None:
    local = ["sliding_attention"] * 2
    changes = {"num_hidden_layers": 2, "layer_types": local, "local_attention": 4}
    model = build("ModernBertModel", "ModernBert", changes)
    changed = TOKENS.copy()
    changed[:, 0] += 1 - 2 * (changed[:, 0] == 95)
    both = [outputs(model, tokens=tokens)["hidden"] for tokens in (TOKENS, changed)]
    moved = np.abs(both[1] - both[0]).max(axis=(0, 2)) > 1e-4
    np.testing.assert_array_equal(moved, np.arange(10) <= 2 * 2)  # two tokens further per layer


def test_layers_of_a_group_share_blocks() -> None:
    groups = {"num_hidden_layers": 6, "num_hidden_groups": 2, "inner_group_num": 2}
    model = build("AlbertModel", "Albert", groups)
    blocks = {name.split(".")[1] for name in model.parameters if name.startswith("blocks")}
    assert blocks == set("0123")
    assert model.config.order == (0, 1) * 3 + (2, 3) * 3


@pytest.mark.parametrize("bidirectional", [True, False])
def test_near_distances_have_buckets_of_their_own_and_far_ones_share(bidirectional: bool) -> None:
    buckets = buckets_of_distances(32, 128, bidirectional=bidirectional)
    before = buckets[:129][::-1]  # of 0, 1, 2, … tokens before the query
    side = 16 if bidirectional else 32
    np.testing.assert_array_equal(before[: side // 2], np.arange(side // 2))
    assert (np.diff(before) >= 0).all()
    assert before[-1] == side - 1
    after = buckets[129:]
    expected = before[1:] + side if bidirectional else np.zeros(128)
    np.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize(("family", "longest"), [("Bert", 32), ("Roberta", 30), ("MPNet", 30)])
def test_a_text_longer_than_the_positions_is_refused(family: str, longest: int) -> None:
    model = build(f"{family}Model", family)
    assert model.config.max_seq_len == longest
    whole = merge(model.graph, model.parameters)
    jax.eval_shape(whole, np.full((1, longest), 3))
    with pytest.raises(InputError, match=f"{longest + 1} tokens, but .* context is {longest}."):
        jax.eval_shape(whole, np.full((1, longest + 1), 3))


@pytest.mark.parametrize(
    ("name", "family", "changes", "message"),
    [
        ("BertModel", "Bert", {"is_decoder": True}, "only bidirectional attention"),
        ("BertModel", "Bert", {"num_attention_heads": 5}, "not a multiple of num_heads=5"),
        (
            "BertForMaskedLM",
            "Bert",
            {"tie_word_embeddings": False},
            "must share the embedding table",
        ),
        ("MPNetModel", "MPNet", {"relative_attention_num_buckets": 16}, "only 32 buckets"),
        ("AlbertModel", "Albert", {"num_hidden_groups": 9}, "num_groups=9 must be from 1 to"),
        ("ModernBertModel", "ModernBert", {"classifier_pooling": "max"}, "choose one of cls, mean"),
        (
            "ModernBertModel",
            "ModernBert",
            {"layer_types": ["chunked"] * 3},
            "one of .* for each layer",
        ),
        ("ModernBertModel", "ModernBert", {"hidden_size": 36}, "the rotary width is 9 per head"),
    ],
)
def test_bad_configs_are_refused(
    name: str, family: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, family, changes)
