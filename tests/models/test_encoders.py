"""The laws of encoders of text, over all kinds of them, from random weights."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.layers.relative import buckets_of_distances
from models.parameters import Parameters, merge, split
from models.registry import ARCHITECTURES
from models.sharding import parameter_shardings
from models.weights.fields import Fields
from tests.models.parity.text_cases import FAMILIES

# Each has something that no other has; the rest of FAMILIES differ from them in names.
KINDS = ("Bert", "Roberta", "Albert", "MPNet", "ModernBert")
TOKENS = np.random.default_rng(0).integers(3, 96, (4, 10)).astype(np.int32)
# Two or three blocks of FP32 roundings on numbers of up to three or so.
FP32 = {"rtol": 1e-5, "atol": 3e-5}


def build(name: str, family: str, dtype: str = "float32", **changes: object):
    """A model with weights far larger than in training, so that every part matters."""
    architecture = ARCHITECTURES[name]
    values = {**FAMILIES[family], "initializer_range": 0.3, **changes}
    config = replace(architecture.read_config(Fields(values, name)), dtype=dtype)
    return architecture, *split(architecture.build(config))


@jax.jit(static_argnums=0)
def run(graph: nnx.GraphDef, parameters: Parameters, inputs: dict[str, jax.Array]):
    return merge(graph, parameters)(**inputs)


@pytest.mark.parametrize("family", KINDS)
def test_padding_changes_nothing(family: str) -> None:
    _, graph, parameters = build(f"{family}Model", family)
    expected = run(graph, parameters, {"tokens": TOKENS})
    junk = np.random.default_rng(1).integers(3, 96, (4, 6)).astype(np.int32)
    padded = np.concatenate([TOKENS, junk], axis=1)
    real = np.broadcast_to(np.arange(16) < 10, padded.shape)
    got = run(graph, parameters, {"tokens": padded, "real": real})
    np.testing.assert_allclose(got["hidden"][:, :10], expected["hidden"], **FP32)
    if "pooled" in expected:
        np.testing.assert_allclose(got["pooled"], expected["pooled"], **FP32)
    seen = run(graph, parameters, {"tokens": padded, "real": np.ones_like(real)})
    assert np.abs(seen["hidden"][:, :10] - expected["hidden"]).max() > 0.1


@pytest.mark.parametrize("family", KINDS)
def test_sharded_is_unsharded(devices: list[jax.Device], family: str) -> None:
    name = f"{family}ForTokenClassification"
    architecture, graph, parameters = build(name, family)
    mesh = jax.sharding.Mesh(np.array(devices[:8]).reshape(2, 2, 2), ("data", "fsdp", "model"))
    shardings = parameter_shardings(mesh, parameters, architecture.axes)
    assert sum(not sharding.is_fully_replicated for sharding in shardings.values()) > 10
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("data", "fsdp")))
    got = run(
        graph,
        jax.device_put(parameters, shardings),
        {"tokens": jax.device_put(TOKENS, rows)},
    )
    alone = jax.device_put((parameters, {"tokens": TOKENS}), devices[0])
    np.testing.assert_allclose(got["logits"], run(graph, *alone)["logits"], **FP32)


@pytest.mark.parametrize("family", KINDS)
def test_bfloat16_is_close_to_float32(family: str) -> None:
    name = f"{family}ForMaskedLM"
    _, graph, parameters = build(name, family, initializer_range=0.1)
    _, rough_graph, _ = build(name, family, "bfloat16", initializer_range=0.1)
    exact = run(graph, parameters, {"tokens": TOKENS})["logits"]
    rough = run(rough_graph, parameters, {"tokens": TOKENS})["logits"]
    assert rough.dtype == jnp.float32
    assert not np.array_equal(rough, exact)
    # bfloat16 has 8 bits: each of some ten roundings in a row costs up to 0.4 %.
    np.testing.assert_allclose(rough, exact, atol=0.04 * float(jnp.max(jnp.abs(exact))))


def test_choices_are_independent_texts() -> None:
    _, graph, parameters = build("BertForMultipleChoice", "Bert")
    choices = np.random.default_rng(2).integers(3, 96, (2, 3, 10)).astype(np.int32)
    changed = choices.copy()
    changed[:, 1] = changed[::-1, 1]
    before = run(graph, parameters, {"tokens": choices})["logits"]
    after = run(graph, parameters, {"tokens": changed})["logits"]
    assert before.shape == (2, 3)
    np.testing.assert_allclose(after[:, ::2], before[:, ::2], **FP32)
    np.testing.assert_allclose(after[:, 1], before[::-1, 1], **FP32)


def test_local_layers_see_their_neighbourhood_alone() -> None:
    local = ["sliding_attention"] * 2
    changes = {"num_hidden_layers": 2, "layer_types": local, "local_attention": 4}
    _, graph, parameters = build("ModernBertModel", "ModernBert", **changes)
    changed = TOKENS.copy()
    changed[:, 0] += 1 - 2 * (changed[:, 0] == 95)
    both = [run(graph, parameters, {"tokens": tokens})["hidden"] for tokens in (TOKENS, changed)]
    moved = np.abs(both[1] - both[0]).max(axis=(0, 2)) > 1e-4
    np.testing.assert_array_equal(moved, np.arange(10) <= 2 * 2)  # two tokens further per layer


def test_layers_of_a_group_share_blocks() -> None:
    _, graph, parameters = build(
        "AlbertModel", "Albert", num_hidden_layers=6, num_hidden_groups=2, inner_group_num=2
    )
    assert {name.split(".")[1] for name in parameters if name.startswith("blocks")} == set("0123")
    order = merge(graph, parameters).config.order
    assert order == (0, 1) * 3 + (2, 3) * 3


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


@pytest.mark.parametrize(
    ("name", "family", "changes", "message"),
    [
        ("BertModel", "Bert", {"is_decoder": True}, "only bidirectional attention"),
        ("BertModel", "Bert", {"num_attention_heads": 5}, "not a multiple of num_heads=5"),
        ("BertForMaskedLM", "Bert", {"tie_word_embeddings": False}, "must be the embedding's"),
        ("MPNetModel", "MPNet", {"relative_attention_num_buckets": 16}, "only 32 buckets"),
        ("AlbertModel", "Albert", {"num_hidden_groups": 9}, "num_groups=9 groups do not share"),
        ("ModernBertModel", "ModernBert", {"classifier_pooling": "max"}, "supported are cls, mean"),
        ("ModernBertModel", "ModernBert", {"layer_types": ["chunked"] * 3}, "one of .* per layer"),
        ("ModernBertModel", "ModernBert", {"hidden_size": 36}, "9 numbers of each head turn"),
    ],
)
def test_bad_configs_are_refused(
    name: str, family: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, family, **changes)
