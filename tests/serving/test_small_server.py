"""The server to read first answers as the whole one does."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from launch.serving.examples.small_server import PATH, make_server
from launch.text import ByteTokenizer
from tests.serving.http_server import LIMITS, NAME, byte_model, running

PROMPTS = ["The ", "A longer prompt than that, of more than one chunk of it.", "3"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with make_server(byte_model().runner(LIMITS), LIMITS, ByteTokenizer(), (), 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        server.engine.close()


def test_answers_are_those_of_the_whole_server(url: str, byte_runner: Any) -> None:
    asked: dict[str, Any] = {"model": NAME, "max_tokens": 12, "temperature": 0}
    with running(byte_runner) as whole:
        expected = [
            whole.ask(PATH, {**asked, "prompt": prompt})[1]["choices"][0]["text"]
            for prompt in PROMPTS
        ]
    with OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        streams = [
            client.completions.create(**asked, prompt=prompt, stream=True) for prompt in PROMPTS
        ]
        pieces = [[chunk.choices[0] for chunk in stream] for stream in streams]
        alone = [client.completions.create(**asked, prompt=prompt) for prompt in PROMPTS]
    assert ["".join(piece.text for piece in own) for own in pieces] == expected
    assert {own[-1].finish_reason for own in pieces} == {"length"}
    assert [made.choices[0].text for made in alone] == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt must be a string"),
        ({"prompt": "a" * 200}, "maximum context length"),
        ({"prompt": "a", "temperature": -1}, "out of range"),
        ({"prompt": "a", "max_tokens": "x"}, "must be numbers"),
        ([], "prompt must be a string"),
    ],
)
def test_bodies_that_cannot_be_answered(url: str, body: Any, message: str) -> None:
    data = json.dumps(body).encode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url + PATH, data=data), timeout=60)
    with refused.value as error:
        assert error.code == 400
        assert message in json.loads(error.read())["error"]["message"]
