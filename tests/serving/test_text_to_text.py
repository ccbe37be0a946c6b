"""Encoder-decoders behind the engine: by OpenAI's own client, and from a file of requests."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError
from tokenizers import Tokenizer, models

from launch.serving.config import EngineConfig, ModelNames
from launch.serving.errors import ServingError
from launch.serving.kinds import answer_file, open_model
from launch.serving.model_choice import ModelChoice
from models import pretrained
from tests.launch.random_models import write_model
from tests.models.parity.text_cases import BART, T5
from tests.models.test_encoder_decoders import run
from tests.serving.http_server import listening

COUNT, LONGEST_SOURCE, LONGEST = 12, 20, 14
# There are blocks for one answer of the greatest length: with four slots, some are computed again.
ENGINE = EngineConfig(
    max_model_len=24,
    max_source_len=LONGEST_SOURCE,
    max_num_seqs=4,
    num_seqs_buckets="4",
    prefill_rows_buckets="2",
    prefill_buckets="8",
    context_buckets="24",
    max_num_batched_tokens=16,
    block_size=4,
    num_blocks=6,
)
FORCED = 7
MODELS: dict[str, dict[str, Any]] = {
    "T5ForConditionalGeneration": {**T5, "eos_token_id": 95},
    "BartForConditionalGeneration": {**BART, "eos_token_id": 95, "forced_bos_token_id": FORCED},
}


def write(directory: Path, name: str) -> ModelChoice:
    write_model(directory, name, MODELS[name])
    words = {f"w{i}": i for i in range(96)}
    Tokenizer(models.WordLevel(words, "w0")).save(str(directory / "tokenizer.json"))
    return ModelChoice(Path("unused"), directory, "model=1", ENGINE, ModelNames())


def requests() -> list[tuple[list[int], int]]:
    """Sources and lengths of answers."""
    rng = np.random.default_rng(1)
    sources = [
        rng.integers(3, 95, rng.integers(1, LONGEST_SOURCE + 1)).tolist() for _ in range(COUNT)
    ]
    sources[3], sources[-1] = sources[2], sources[0]  # one place may hold what another needs
    return [(source, int(rng.integers(1, LONGEST))) for source in sources]


def expected(directory: Path, opening: list[int]) -> list[str]:
    """The likeliest texts, each token by a pass over the whole target."""
    model = pretrained.load(directory)
    asked = requests()
    source = np.zeros((COUNT, LONGEST_SOURCE), np.int32)
    for row, (tokens, _) in enumerate(asked):
        source[row, : len(tokens)] = tokens
    real = np.arange(LONGEST_SOURCE) < np.array([[len(tokens)] for tokens, _ in asked])
    target = np.zeros((COUNT, 24), np.int32)
    target[:, : len(opening)] = opening
    for place in range(len(opening), len(opening) + LONGEST):
        logits = run(model.graph, model.parameters, target, source=source, real=real)
        target[:, place] = np.argmax(logits[:, place - 1], axis=-1)
    answers = []
    for row, (_, count) in enumerate(asked):
        answer = target[row, len(opening) : len(opening) + count].tolist()
        answer = answer[: answer.index(95)] if 95 in answer else answer
        answers.append(" ".join(f"w{token}" for token in answer))
    return answers


async def ask_all(url: str) -> list[str]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        create = client.completions.create
        answers = await asyncio.gather(
            *(
                create(model="model", prompt=source, max_tokens=count, temperature=0)
                for source, count in requests()
            )
        )
        assert [answer.usage.prompt_tokens for answer in answers if answer.usage] == [
            len(source) for source, _ in requests()
        ]
        for prompt, message in (([3] * 21, "reads at most 20"), ("", "prompt is empty")):
            with pytest.raises(BadRequestError, match=message):
                await create(model="model", prompt=prompt, max_tokens=1)
        # llguidance knows no tokenizer of words.
        form: dict[str, Any] = {"structured_outputs": {"regex": "a"}}
        with pytest.raises(BadRequestError, match="not possible with this model's tokenizer"):
            await create(model="model", prompt=[3], extra_body=form)
        with pytest.raises(BadRequestError, match="leave echo out"):
            await create(model="model", prompt=[3], echo=True)
        return [answer.choices[0].text for answer in answers]


@pytest.mark.slow
def test_t5_by_openais_client(tmp_path: Path) -> None:
    """Requests beside each other, some of which lose their places, get what they would alone."""
    choice = write(tmp_path / "model", "T5ForConditionalGeneration")
    with open_model(choice) as backend, listening(backend) as server:
        texts = asyncio.run(ask_all(server.url))
        load = backend.desk.engine.load()  # type: ignore[attr-defined]
        status, _ = server.ask("/v1/chat/completions", {"messages": []})
    assert texts == expected(tmp_path / "model", [0])
    assert load.blocks_held == 0
    assert load.counters.preemptions > 0
    assert status == 404


@pytest.mark.slow
def test_bart_from_a_file_of_requests(tmp_path: Path) -> None:
    choice = write(tmp_path / "model", "BartForConditionalGeneration")
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": source, "max_tokens": count, "temperature": 0},
        }
        for number, (source, count) in enumerate(requests())
    ]
    file, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert answer_file(choice, file, output, concurrency=8) == 0
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    texts = {
        answer["custom_id"]: answer["response"]["body"]["choices"][0]["text"] for answer in answers
    }
    assert [texts[str(i)] for i in range(COUNT)] == expected(tmp_path / "model", [2, FORCED])


def test_settings_of_decoders_alone_are_refused(tmp_path: Path) -> None:
    choice = write(tmp_path / "model", "T5ForConditionalGeneration")
    choice = replace(choice, engine=EngineConfig(enable_lora=True))
    with (
        pytest.raises(ServingError, match="--enable_lora does not go with an encoder-decoder"),
        open_model(choice),
    ):
        pass
