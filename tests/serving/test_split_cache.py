"""Cores that share the positions of a cache: the answers of one core, and a part of its memory."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from launch.serving.config import EngineConfig
from launch.serving.server import Loaded, load, make_engine
from models.layers.attention import AttentionCall, dot_product_attention
from models.parallel.cache_split import CacheSplit
from tests.launch.checkpoint_files import VOCAB, write_directory
from tests.serving.engines import SMALL, Answer, Clients, ask, random_requests

LAYERS = 2
COLLECTIVES = r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "qwen"
    return write_directory(folder, num_hidden_layers=LAYERS, dtype="float32")


def answers_of(loaded: Loaded, config: EngineConfig) -> list[Answer]:
    """To texts of which some begin alike, and for which there are not enough blocks."""
    clients = Clients()
    with make_engine(loaded.runners, loaded.limits, config, clients.deliver) as engine:
        answers = ask(engine, clients, random_requests(16, 3, VOCAB))
        counters = engine.load().counters
        assert counters.prefix_hits > 0
        assert counters.preemptions > 0
    return answers


@pytest.fixture(scope="module")
def alone(directory: Path) -> list[Answer]:
    return answers_of(load(Path("unused"), directory, "model=1", SMALL), SMALL)


@pytest.mark.parametrize("with_sinks", [False, True], ids=["plain", "sinks"])
def test_parts_of_the_softmax_add_up(with_sinks: bool) -> None:
    draw = np.random.default_rng(0).standard_normal
    query, keys, values = (draw((3, 2, heads, 8), np.float32) for heads in (8, 2, 2))
    keys, values = (np.tile(x, (1, 4, 1, 1)) * draw((3, 8, 1, 1)) for x in (keys, values))
    mask = np.tri(2, 8, 5, dtype=bool)[None].repeat(3, 0)
    sinks = draw(8, np.float32) if with_sinks else None
    mesh = jax.make_mesh(
        (2, 2), ("model", "kv_replica"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    arguments = (query, keys, values, AttentionCall(mask, sinks=sinks))
    split, whole = jax.jit(CacheSplit(mesh).attend), jax.jit(dot_product_attention)
    np.testing.assert_allclose(split(*arguments), whole(*arguments), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_cores_that_divide_no_heads_answer_as_one(directory: Path, alone: list[Answer]) -> None:
    assert answers_of(load(Path("unused"), directory, "model=3", SMALL), SMALL) == alone


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_four_cores_answer_as_one(directory: Path, alone: list[Answer], size: int) -> None:
    config = replace(SMALL, decode_context_parallel_size=size)
    loaded = load(Path("unused"), directory, "model=4", config)
    assert [a.tokens for a in answers_of(loaded, config)] == [a.tokens for a in alone]
    (runner,) = loaded.runners
    leaves = jax.tree.leaves(runner.read_blocks([1]))
    of_a_block = {leaf.addressable_shards[0].data[0].nbytes for leaf in leaves}
    heads, width, tokens = 2, 8, 4
    assert of_a_block == {tokens * heads * width * 4 // 4}
    assert len(leaves) == 2 * LAYERS
    decode = next(bucket for bucket in loaded.limits.buckets if bucket.tokens == 1)
    program = runner.programs.get(decode).as_text()
    assert Counter(re.findall(COLLECTIVES, program)) == {
        "all-gather": LAYERS + 1,  # of queries; of logits
        "reduce-scatter": LAYERS,  # of what every core has seen
        "all-reduce": 3 * LAYERS + 1,  # of largest scores, attention, MLP; of the embedding
    }
