"""Groups of cores with rows of their own: the answers of one core, and a part of its cache."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from launch.serving.config import EngineConfig
from launch.serving.errors import ServingError
from launch.serving.server import Loaded, load, make_engine
from tests.launch.checkpoint_files import VOCAB, write_directory
from tests.serving.engines import Answer, Clients, ask, random_requests
from tests.serving.test_split_cache import COLLECTIVES

LAYERS = 2
SMALL = EngineConfig(
    max_num_seqs=8,
    num_seqs_buckets="8",
    prefill_buckets="16",
    prefill_rows_buckets="4",
    max_num_batched_tokens=64,
    block_size=4,
    num_blocks=64,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "qwen"
    return write_directory(folder, num_hidden_layers=LAYERS, dtype="float32")


def answers_of(loaded: Loaded, config: EngineConfig) -> list[Answer]:
    """To texts of which some begin alike, and for which there are not enough blocks."""
    clients = Clients()
    with make_engine(loaded.runners, loaded.limits, config, clients.deliver) as engine:
        answers = ask(engine, clients, random_requests(24, 3, VOCAB))
        counters = engine.load().counters
        assert counters.prefix_hits > 0
        assert engine.load().blocks_held == 0
    return answers


@pytest.fixture(scope="module")
def alone(directory: Path) -> list[list[int]]:
    loaded = load(Path("unused"), directory, "model=1", SMALL)
    return [answer.tokens for answer in answers_of(loaded, SMALL)]


@pytest.mark.slow
@pytest.mark.parametrize("groups", [2, 4])
def test_groups_answer_as_one_core(directory: Path, alone: list[list[int]], groups: int) -> None:
    config = replace(SMALL, attention_data_parallel_size=groups)
    loaded = load(Path("unused"), directory, "model=4", config)
    assert [answer.tokens for answer in answers_of(loaded, config)] == alone
    (runner,) = loaded.runners
    decode = next(bucket for bucket in loaded.limits.buckets if bucket.tokens == 1)
    program = runner.programs.get(decode).as_text()
    assert Counter(re.findall(COLLECTIVES, program)) == {
        "all-gather": LAYERS + 4,  # of rows before MLPs; tokens, logits, outputs before and after
        # Of the embedding and MLPs; heads, if they are split, make two more for each layer.
        "all-reduce": LAYERS + 1 + (2 * LAYERS if groups < 4 else 0),
    }
    heads, width, tokens = 2, 8, 4
    for leaf in jax.tree.leaves(runner.pages):
        (own, *_) = leaf.addressable_shards
        blocks = SMALL.num_blocks // groups + 1
        assert own.data.shape == (blocks, tokens, heads // (4 // groups), width)


@pytest.mark.parametrize(
    ("changes", "mesh", "message"),
    [
        ({}, "model=3", "must divide the cores that share a model"),
        ({"num_blocks": 63}, "model=2", "--num_blocks=63 cannot be shared out"),
        ({"num_seqs_buckets": "1,8"}, "model=2", "multiples of 2"),
        ({"decode_context_parallel_size": 2}, "model=2", "exclude each other"),
        ({"speculative_config": '{"method": "ngram"}'}, "model=2", "--speculative_config"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(
    directory: Path, changes: dict[str, object], mesh: str, message: str
) -> None:
    config = replace(SMALL, attention_data_parallel_size=2, **changes)
    with pytest.raises(ServingError, match=message):
        load(Path("unused"), directory, mesh, config)
