"""Layers that run as one loop: the answers of layers one after another."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.errors import LaunchError
from launch.serving.config import EngineConfig, ModelNames
from launch.serving.kinds import open_model
from launch.serving.model_choice import ModelChoice
from launch.serving.server import load, make_engine
from tests.launch.checkpoint_files import VOCAB, write_directory
from tests.launch.random_models import write_model
from tests.models.parity.text_cases import T5
from tests.serving.engines import SMALL, Answer, Clients, ask, random_requests

LAYERS = 3
NGRAM = '{"method": "ngram", "num_speculative_tokens": 2}'


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "qwen"
    return write_directory(folder, num_hidden_layers=LAYERS, dtype="float32")


def answers(directory: Path, mesh: str, config: EngineConfig) -> list[Answer]:
    loaded = load(Path("unused"), directory, mesh, config)
    clients = Clients()
    with make_engine(loaded.runners, loaded.limits, config, clients.deliver) as engine:
        return ask(engine, clients, random_requests(8, 3, VOCAB))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "settings"),
    [
        ("model=1", {"kv_cache_dtype": "fp8"}),
        ("model=2", {"speculative_config": NGRAM}),
        ("data=2", {"disaggregated_prefill": True}),
    ],
)
def test_a_loop_answers_as_its_layers(directory: Path, mesh: str, settings: dict[str, Any]) -> None:
    config = replace(SMALL, **settings)
    expected = answers(directory, mesh, config)
    looped = answers(directory, mesh, replace(config, scan_layers=True))
    assert [a.tokens for a in looped] == [a.tokens for a in expected]
    assert any(len(a.tokens) > 1 for a in looped)


def choice(directory: Path, **settings: Any) -> ModelChoice:
    return ModelChoice(Path("unused"), directory, "model=1", EngineConfig(**settings), ModelNames())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enable_lora": True}, "--scan_layers does not go with --enable_lora"),
        ({"decode_context_parallel_size": 2}, "not go with --decode_context_parallel_size"),
    ],
)
def test_what_changes_each_layer_by_itself_is_refused(
    directory: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        load(Path("unused"), directory, "model=2", EngineConfig(scan_layers=True, **settings))


def test_what_has_an_encoder_and_a_decoder_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "t5", "T5ForConditionalGeneration", T5)
    with pytest.raises(LaunchError, match=r"for models of text alone \(generate, pooling\)"):
        open_model(choice(model, scan_layers=True))
