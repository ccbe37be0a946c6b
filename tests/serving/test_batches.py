"""Files, batches and responses that are kept, by OpenAI's client."""

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.serving.http_server import NAME, Running
from tests.serving.test_http import CHAT, COMPLETIONS

BODY = {"model": NAME, "prompt": "The ", "max_tokens": 5, "temperature": 0}


def connected(server: Running, key: str) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with connected(server, "one") as client:
        yield client


def lines(bodies: list[dict[str, Any]], url: str = COMPLETIONS) -> bytes:
    head = {"method": "POST", "url": url}
    rows = [{"custom_id": str(n), **head, "body": body} for n, body in enumerate(bodies)]
    return "\n".join(map(json.dumps, rows)).encode()


def begin(client: OpenAI, data: bytes, endpoint: Any = COMPLETIONS) -> Any:
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"a": "b"}
    )


def ended(client: OpenAI, batch: Any) -> Any:
    end = time.monotonic() + 60
    while batch.status in ("in_progress", "cancelling"):
        assert time.monotonic() < end
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    return batch


def records(client: OpenAI, file: str | None) -> dict[str, Any]:
    assert file is not None
    rows = map(json.loads, client.files.content(file).text.splitlines())
    return {row["custom_id"]: row["response"] for row in rows}


def test_a_batch_from_its_file_to_its_answers(client: OpenAI, server: Running) -> None:
    bodies = [{**BODY, "prompt": f"Number {n}"} for n in range(70)]
    bodies[3] = {**BODY, "temperature": -1}
    batch = begin(client, lines(bodies))
    assert (batch.status, batch.request_counts.total) == ("in_progress", 70)
    batch = ended(client, batch)
    counts = batch.request_counts
    assert (batch.status, counts.completed, counts.failed) == ("completed", 69, 1)
    assert batch.metadata == {"a": "b"}
    answers = records(client, batch.output_file_id)
    assert len(answers) == 69
    for number in (0, 5, 69):
        alone = server.ask(COMPLETIONS, bodies[number])[1]
        assert answers[str(number)]["body"]["choices"] == alone["choices"]
    (failed,) = records(client, batch.error_file_id).values()
    assert (failed["status_code"], failed["body"]["error"]["param"]) == (400, "temperature")
    assert batch.id in [known.id for known in client.batches.list()]
    listed = [file.id for file in client.files.list()]
    assert {batch.input_file_id, batch.output_file_id, batch.error_file_id} <= set(listed)
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.NotFoundError, match="no file"):
        client.files.retrieve(batch.input_file_id)


def test_a_batch_ends_early(client: OpenAI) -> None:
    bodies = [{**BODY, "max_tokens": 150, "n": 64} for _ in range(20)]
    batch = begin(client, lines(bodies))
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = ended(client, batch)
    assert batch.status == "cancelled"
    assert batch.request_counts.completed < 20


def test_others_have_none_of_it(client: OpenAI, server: Running) -> None:
    file = client.files.create(file=("in.jsonl", lines([BODY])), purpose="batch")
    response = client.responses.create(model=NAME, input="Hi", max_output_tokens=1)
    with connected(server, "two") as other:
        assert file.id not in [known.id for known in other.files.list()]
        for ask in (
            lambda: other.files.content(file.id),
            lambda: other.files.delete(file.id),
            lambda: other.responses.retrieve(response.id),
            lambda: other.responses.create(
                model=NAME, input="Hi", previous_response_id=response.id
            ),
        ):
            with pytest.raises(openai.NotFoundError, match="of yours"):
                ask()


@pytest.mark.parametrize(
    ("data", "endpoint", "message"),
    [
        (b"{", COMPLETIONS, "is not JSON"),
        (b"\xff", COMPLETIONS, "no batch"),
        (b"", COMPLETIONS, "it has no lines"),
        (lines([BODY, BODY], CHAT), COMPLETIONS, "the line '0' has another url"),
        (lines([BODY]), "/v1/files", "endpoint is"),
    ],
)
def test_files_that_are_no_batch(client: OpenAI, data: bytes, endpoint: str, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        begin(client, data, endpoint)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_conversation_that_the_server_keeps(client: OpenAI, stream: bool) -> None:
    """It goes on as if all of it had been sent again."""
    asked: dict[str, Any] = {"model": NAME, "max_output_tokens": 5, "temperature": 0}
    first = client.responses.create(**asked, input="Hi", instructions="A", stream=stream)
    if stream:
        first = list(first)[-1].response
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(**asked, input="And?", previous_response_id=first.id)
    whole = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And?"},
    ]
    same = client.responses.create(**asked, input=whole, store=False)
    assert second.output_text == same.output_text
    assert second.usage.input_tokens == same.usage.input_tokens
    assert (second.previous_response_id, second.store, same.store) == (first.id, True, False)
    client.responses.delete(first.id)
    for gone in (first, same):
        with pytest.raises(openai.NotFoundError, match="no response"):
            client.responses.retrieve(gone.id)


def test_one_path_for_all_that_a_model_does(server: Running) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}
    for path, body in ((COMPLETIONS, BODY), (CHAT, chat)):
        told, same = (server.ask(where, body)[1] for where in ("/invocations", path))
        assert told["choices"] == same["choices"]
        assert told["object"] == same["object"]
    status, told = server.ask("/invocations", {"query": "a", "documents": ["b"]})
    assert (status, told["error"]["message"]) == (400, "tiny does not do what the body asks for")


def test_the_paths_are_described(server: Running) -> None:
    told = server.ask("/openapi.json")[1]
    assert told["openapi"].startswith("3.")
    for path, method in (
        (CHAT, "post"),
        ("/v1/files/{identifier}", "delete"),
        ("/v1/responses/{identifier}", "get"),
        ("/v1/batches", "get"),
        ("/v1/batches", "post"),
    ):
        assert "200" in told["paths"][path][method]["responses"]
