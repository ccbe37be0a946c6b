"""Cores that share the positions of a cache: the answers of one core, and a part of its memory."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from launch.serving.config import EngineConfig
from launch.serving.server import Loaded, load, make_engine
from tests.launch.checkpoint_files import VOCAB, write_directory
from tests.serving.engines import Answer, Clients, ask, random_requests

LAYERS = 2
SMALL = EngineConfig(
    max_num_seqs=4,
    num_seqs_buckets="4",
    prefill_buckets="16",
    prefill_rows_buckets="1",
    max_num_batched_tokens=16,
    block_size=4,
    num_blocks=18,
)
COLLECTIVES = r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "qwen"
    return write_directory(folder, num_hidden_layers=LAYERS, dtype="float32")


def answers_of(loaded: Loaded, config: EngineConfig) -> list[Answer]:
    """To texts of which some begin alike, and for which there are not enough blocks."""
    clients = Clients()
    with make_engine(loaded, config, clients.deliver) as engine:
        answers = ask(engine, clients, random_requests(16, 3, VOCAB))
        counters = engine.load().counters
        assert counters.prefix_hits > 0
        assert counters.preemptions > 0
    return answers


@pytest.fixture(scope="module")
def alone(directory: Path) -> list[Answer]:
    return answers_of(load(Path("unused"), directory, "model=1", SMALL), SMALL)


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
