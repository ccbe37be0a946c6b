"""Conversations with images, behind the server."""

import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

from launch.errors import DataError
from launch.images_in_text import MARKS
from launch.serving.config import EngineConfig, ModelNames
from launch.serving.errors import ServingError
from launch.serving.kinds import open_model
from launch.serving.model_choice import ModelChoice
from models import pretrained
from models.images import pixels_of, read_preprocessing
from models.parameters import merge
from tests.launch.image_text_files import CONFIGS, IMAGE_TOKEN, write_image_text
from tests.serving.http_server import Listening, listening
from tests.serving.page_examples import examples, run_example

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(5)
IMAGES = [
    Image.fromarray(RNG.integers(0, 256, (height, width, 3), np.uint8))
    for height, width in ((24, 24), (40, 31), (17, 60))
]
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %} @ {% else %} {{ part['text'] }} {% endif %}"
    "{% endfor %}{% endfor %} answer"
)
TOKENS = 5  # of an answer
CHAT = "/v1/chat/completions"


def url_of(image: Image.Image, form: str = "PNG") -> str:
    stream = io.BytesIO()
    image.save(stream, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"


def shown(image: Image.Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(image)}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def asked(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The body of a chat with one message."""
    messages = [{"role": "user", "content": [*parts]}]
    return {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True} | more


CONVERSATIONS: dict[str, list[Any]] = {
    "image first": [IMAGES[0], "what is it"],
    "text first": ["what is", IMAGES[1], "it"],
    "two images": [IMAGES[1], "is", IMAGES[2], "what"],
    "twice the same": [IMAGES[0], IMAGES[0], "it"],
    "across pieces": ["what is it is it", IMAGES[2], "what", IMAGES[1]],
    "no image": ["what is it is it what it"],
}
"""What the user says, in words and images."""


@jax.jit(static_argnums=0)
def logits_of(graph: Any, parameters: Any, *inputs: Any) -> jax.Array:
    return merge(graph, parameters)(*inputs)


class Reference:
    """The model of a directory, which computes whole texts."""

    def __init__(self, directory: Path) -> None:
        self.model = pretrained.load(directory)
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.preprocessing = read_preprocessing(directory)
        self.marks = MARKS[self.model.architecture.model_type]

    def answer(self, parts: list[Any]) -> str:
        """The likeliest tokens, one after the other, as text."""
        marks = self.marks
        image = marks.before + f" {marks.token} " * self.model.config.image_tokens + marks.after
        text = " ".join(part if isinstance(part, str) else image for part in parts) + " answer"
        images = [
            pixels_of(part, self.preprocessing) for part in parts if not isinstance(part, str)
        ]
        pixels = np.stack(images) if images else np.zeros((1, 24, 24, 3), np.float32)
        tokens = self.tokenizer.encode(text).ids
        begin = len(tokens)
        for _ in range(TOKENS):
            padded = np.array([tokens + [0] * (48 - len(tokens))])
            logits = logits_of(self.model.graph, self.model.parameters, padded, pixels[None])
            tokens.append(int(np.argmax(logits[0, len(tokens) - 1])))
        return self.tokenizer.decode(tokens[begin:])


@pytest.fixture(scope="module", params=CONFIGS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_image_text(tmp_path_factory.mktemp("models") / "seeing", request.param, TEMPLATE)


def choice(directory: Path, mesh: str = "model=2", **settings: Any) -> ModelChoice:
    engine = EngineConfig(
        **{
            "num_seqs_buckets": "4",
            "prefill_rows_buckets": "1",
            "prefill_buckets": "8",  # so that prompts are computed in pieces
            "context_buckets": "64",
            "max_num_batched_tokens": 8,
            "max_num_seqs": 4,
            "block_size": 4,
            "max_images": 2,
            **settings,
        }
    )
    return ModelChoice(Path("unused"), directory, mesh, engine, ModelNames())


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Listening]:
    with open_model(choice(directory)) as backend, listening(backend) as server:
        yield server


def text_of(answer: tuple[int, Any]) -> str:
    status, body = answer
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])


def test_answers(server: Listening, directory: Path) -> None:
    """All at the same time and again, so that blocks are shared and places are used anew."""
    reference = Reference(directory)
    expected = {name: reference.answer(parts) for name, parts in CONVERSATIONS.items()}
    bodies = {
        name: asked(*(said(part) if isinstance(part, str) else shown(part) for part in parts))
        for name, parts in CONVERSATIONS.items()
    }
    with ThreadPoolExecutor(8) as pool:
        names = [*bodies] * 3
        answers = list(pool.map(lambda name: text_of(server.ask(CHAT, bodies[name])), names))
    assert [(name, text.split()) for name, text in zip(names, answers, strict=True)] == [
        (name, expected[name].split()) for name in names
    ]
    assert len(set(expected.values())) > 2


def test_other_bodies_say_the_same(server: Listening) -> None:
    """Of OpenAI's Responses and Anthropic's Messages, and streams."""
    expected = text_of(server.ask(CHAT, asked(said("what is"), shown(IMAGES[1]), said("it"))))
    url = url_of(IMAGES[1])
    status, told = server.ask(
        "/v1/responses",
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "what is"},
                        {"type": "input_image", "image_url": url},
                        {"type": "input_text", "text": "it"},
                    ],
                }
            ],
            "max_output_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        },
    )
    assert status == 200, told
    assert told["output"][0]["content"][0]["text"] == expected
    image = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    content = [said("what is"), {"type": "image", "source": image}, said("it")]
    status, told = server.ask(
        "/v1/messages",
        {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": TOKENS,
            "temperature": 0,
        },
    )
    assert status == 200, told
    assert expected.startswith(told["content"][0]["text"])


@pytest.mark.parametrize("line", examples("pictures"))
def test_examples(server: Listening, tmp_path: Path, line: str) -> None:
    IMAGES[0].save(tmp_path / "image.png")
    assert "assistant" in run_example(line, server, tmp_path)


def test_tokens_of_images(server: Listening) -> None:
    body = asked(shown(IMAGES[0]), said("it"), return_token_ids=True, max_tokens=1)
    status, told = server.ask(CHAT, body)
    assert status == 200
    assert told["prompt_token_ids"].count(IMAGE_TOKEN) >= 4
    assert told["usage"]["prompt_tokens"] == len(told["prompt_token_ids"])
    counted = server.ask("/tokenize", {"messages": body["messages"]})[1]
    assert counted["tokens"] == told["prompt_token_ids"]


def test_images_of_another_size(tmp_path: Path) -> None:
    directory = write_image_text(tmp_path / "model", "SmolVLMForConditionalGeneration", TEMPLATE)
    settings = {"image_processor_type": "SmolVLMImageProcessor"}
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    with (
        pytest.raises(DataError, match="but the model sees 24 x 24"),
        open_model(choice(directory)),
    ):
        pass


BOMB = Image.new("1", (5000, 5000))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([shown(IMAGES[0])] * 3, "at most 2 are taken"),
        ([{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}], "fetched"),
        ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "fetched"),
        ([{"type": "image_url", "image_url": {}}], "with a url"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}], "be read"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "be read"),
        ([{"type": "image_url", "image_url": {"url": url_of(IMAGES[0], "BMP")}}], "formats are"),
        ([shown(BOMB)], "5000 x 5000 pixels"),
        ([{"type": "input_audio"}], "only parts of the type text"),
    ],
)
def test_images_that_cannot_be_read(server: Listening, parts: list[Any], why: str) -> None:
    status, told = server.ask(CHAT, asked(*parts))
    assert status == 400
    assert why in told["error"]["message"]


def test_marks_in_what_people_say(server: Listening, directory: Path) -> None:
    """They stand for no image."""
    mark = Reference(directory).marks.image
    status, told = server.ask(CHAT, asked(shown(IMAGES[0]), said(f"what is {mark}")))
    assert status == 400
    assert "image tokens" in told["error"]["message"]


def test_steps_too_short_for_an_image(tmp_path: Path) -> None:
    directory = write_image_text(tmp_path / "model", "Gemma3ForConditionalGeneration", TEMPLATE)
    with (
        pytest.raises(ServingError, match="raise --max_num_batched_tokens"),
        open_model(choice(directory, prefill_buckets="2", max_num_batched_tokens=2)),
    ):
        pass
