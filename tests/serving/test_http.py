"""The server by raw HTTP: bodies of errors, limits, clients that go, the end."""

import json
import pkgutil
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from launch.serving import http
from launch.serving.config import ServerConfig
from launch.serving.errors import ServingError
from launch.serving.listener import bind
from launch.serving.runner.runner import Result, Runner
from launch.serving.scheduler.slots import Slots
from launch.serving.scheduler.steps import Step
from tests.serving.http_server import CONTEXT, NAME, Running, running
from tests.serving.page_examples import LINES, PATHS, examples, path_of, run_example

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"model": NAME, "prompt": "a", "max_tokens": CONTEXT - 1, "temperature": 0}
MESSAGE = {"role": "user", "content": "Hi"}


def calling(name: str, parameters: Any = None) -> dict[str, Any]:
    """The fields that offer the tool "f", and force a call of a tool."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": name}}}


# (path, body, parameter that is to blame, part of the message)
BAD_BODIES: list[tuple[str, Any, str | None, str]] = [
    (COMPLETIONS, [], None, "a JSON object is needed"),
    (COMPLETIONS, {}, "prompt", "prompt is missing"),
    (COMPLETIONS, {"prompt": ""}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": {}}, "prompt", "a string, a list of tokens"),
    (COMPLETIONS, {"prompt": [1, "a"]}, "prompt", "a string, a list of tokens"),
    (COMPLETIONS, {"prompt": [256]}, "prompt", "below 256"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt", "below 256"),
    (COMPLETIONS, {"prompt": "a" * 200}, "prompt", "maximum context length"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens", "at least 1"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": "x"}, "max_tokens", "an integer"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": True}, "max_tokens", "an integer"),
    (COMPLETIONS, {"prompt": "a", "temperature": -1}, "temperature", "between 0"),
    (COMPLETIONS, {"prompt": "a", "top_p": 0}, "top_p", "no token"),
    (COMPLETIONS, {"prompt": "a", "n": 0}, "n", "from 1"),
    (COMPLETIONS, {"prompt": ["a"] * 70, "n": 2}, "n", "more than 128 answers"),
    (COMPLETIONS, {"prompt": "a", "best_of": 3}, "best_of", "not supported"),
    (COMPLETIONS, {"prompt": "a", "use_beam_search": True}, "use_beam_search", "not supported"),
    (COMPLETIONS, {"prompt": "a", "bad_words": [""]}, "bad_words", "not empty"),
    (COMPLETIONS, {"prompt": "a", "allowed_token_ids": [256]}, "allowed_token_ids", "below 256"),
    (
        COMPLETIONS,
        {"prompt": "a", "allowed_token_ids": [98], "bad_words": ["b"]},
        "bad_words",
        "leave no token",
    ),
    (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs", "from 0 to 20"),
    (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "go"),
    (COMPLETIONS, {"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1 for"),
    (
        COMPLETIONS,
        {
            "prompt": "a",
            "structured_outputs": {
                "structural_tag": {"triggers": ["<f"], "structures": [{"begin": "<g"}]}
            },
        },
        "structured_outputs.structural_tag.structures[0].begin",
        "begins with one of <f",
    ),
    (COMPLETIONS, {"prompt": "a", "min_tokens": 17}, "min_tokens", "between 0 and the 16"),
    (COMPLETIONS, {"prompt": "a", "min_tokens": -1}, "min_tokens", "between 0 and the 16"),
    (COMPLETIONS, {"prompt": "a", "stop": [""]}, "stop", "not empty"),
    (COMPLETIONS, {"prompt": "a", "stop": ["x"] * 17}, "stop", "at most 16"),
    (COMPLETIONS, {"prompt": "a", "stream": "yes"}, "stream", "true or false"),
    (COMPLETIONS, {"prompt": "a", "seed": 1 << 70}, "seed", "out of range"),
    (COMPLETIONS, {"prompt": "a", "priority": 1 << 63}, "priority", "out of range"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 21}, "logprobs", "from 0 to 20"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "numbers below"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias.1", "-100 to 100"),
    (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
    (COMPLETIONS, {"prompt": "a", "stop_token_ids": [True]}, "stop_token_ids", "numbers of tokens"),
    (
        COMPLETIONS,
        {"prompt": "a", "structured_outputs": {}},
        "structured_outputs",
        "one of json, regex",
    ),
    (
        COMPLETIONS,
        {"prompt": "a", "structured_outputs": {"regex": "a{100000000}"}},
        "response_format",
        "too many expressions",
    ),
    (CHAT, {}, "messages", "missing"),
    (
        CHAT,
        {"messages": [MESSAGE], "chat_template_kwargs": {"self": 1}},
        "chat_template_kwargs",
        "no variable of a template",
    ),
    ("/tokenize", {}, "prompt", "a string, or messages"),
    ("/tokenize", {"messages": []}, "messages", "at least one"),
    ("/detokenize", {"tokens": [256]}, "tokens", "below 256"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages", "content is missing"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": "f"}]}, "messages", "must be a list"),
    (
        CHAT,
        {"messages": [MESSAGE], "tools": [{"function": {"name": "two words"}}]},
        "tools",
        "names are 1 to 64",
    ),
    (CHAT, {"messages": []}, "messages", "at least one"),
    (
        CHAT,
        {"messages": [MESSAGE], "continue_final_message": True, "add_generation_prompt": True},
        "messages",
        "needs add_generation_prompt=false",
    ),
    (CHAT, {"messages": [3]}, "messages", r"messages\[0\] must be"),
    (CHAT, {"messages": [{"role": "pope"}]}, "messages", "a role of"),
    (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages", "a string or a list"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages",
        "type text",
    ),
    (CHAT, {"messages": [MESSAGE], "top_logprobs": 2}, "top_logprobs", "logprobs=true"),
    (CHAT, {"messages": [MESSAGE], "tools": [{}]}, "tools", "every tool"),
    (CHAT, {"messages": [MESSAGE], "tool_choice": "required"}, "tool_choice", "no tools"),
    (CHAT, {"messages": [MESSAGE], "tool_choice": "always"}, "tool_choice", "auto, none, required"),
    (CHAT, {"messages": [MESSAGE], "tool_choice": {"function": "f"}}, "tool_choice", "an object"),
    (CHAT, {"messages": [MESSAGE], **calling("g")}, "tool_choice", "'g', which is not among"),
    (CHAT, {"messages": [MESSAGE], **calling("f", [])}, "tools", "must be a JSON schema"),
    (CHAT, {"messages": [MESSAGE], **calling("f", {"type": "x"})}, "tools", "Invalid type: x"),
    (CHAT, {"messages": [MESSAGE], "functions": [{"name": "f"}]}, "functions", "give tools"),
    (
        CHAT,
        {"messages": [MESSAGE], "response_format": {"type": "xml"}},
        "response_format",
        "json_schema",
    ),
    (
        CHAT,
        {"messages": [MESSAGE], "response_format": {"type": "json_schema"}},
        "response_format.json_schema.schema",
        "missing; a JSON schema is needed",
    ),
]


@pytest.mark.parametrize(("path", "body", "parameter", "message"), BAD_BODIES)
def test_a_bad_body_is_a_400_that_says_why(
    server: Running, path: str, body: Any, parameter: str | None, message: str
) -> None:
    status, answer = server.ask(path, body)
    assert status == 400
    assert set(answer) == {"error"}
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", parameter)
    assert re.search(message, error["message"])


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"nul", b'{"prompt": "\\ud800"}'],
    ids=["nothing", "half", "no text", "deep", "word", "half a character"],
)
def test_what_is_no_json(server: Running, data: bytes) -> None:
    status, answer = server.ask(COMPLETIONS, data=data, method="POST")
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "method", "status", "code"),
    [
        ("/v1/nothing", "GET", 404, "unknown_url"),
        ("/v1/models/other", "GET", 404, "model_not_found"),
        (COMPLETIONS, "GET", 405, "method_not_supported"),
    ],
)
def test_other_paths(server: Running, path: str, method: str, status: int, code: str) -> None:
    got, answer = server.ask(path, method=method)
    assert (got, answer["error"]["code"]) == (status, code)


@pytest.mark.parametrize("what", ["load", "unload"])
def test_adapters_without_room_for_any(server: Running, what: str) -> None:
    adapter = {"lora_name": "one", "lora_path": "nowhere"}
    status, answer = server.ask(f"/v1/{what}_lora_adapter", adapter)
    assert status == 400
    assert "start it with --enable_lora" in answer["error"]["message"]


@pytest.mark.parametrize("line", examples("tokens"))
def test_examples_of_tokens(server: Running, tmp_path: Path, line: str) -> None:
    told = json.loads(run_example(line, server, tmp_path))
    assert told.get("prompt") == "Hi" or bytes(told["tokens"]) == b"The for statement"


@pytest.mark.parametrize("line", examples("text"))
def test_examples_of_the_readme(server: Running, tmp_path: Path, line: str) -> None:
    (choice,) = json.loads(run_example(line, server, tmp_path))["choices"]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("line", examples("responses"))
def test_examples_of_responses(server: Running, tmp_path: Path, line: str) -> None:
    told = json.loads(run_example(line, server, tmp_path))
    assert (told["status"], told["usage"]["output_tokens"]) == ("incomplete", 32)


def test_every_example_is_run() -> None:
    run = [line for kind in PATHS for line in examples(kind)]
    assert sorted(run) == sorted(LINES)
    assert {path_of(line) for line in LINES} == {path for kind in PATHS.values() for path in kind}


def test_plain_pages(server: Running) -> None:
    assert server.ask("/health") == (200, "")
    assert set(server.ask("/version")[1]) == {"version"}
    (model,) = server.ask("/v1/models")[1]["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == (NAME, "model", CONTEXT)


TIMES = (
    *(f"request_{name}_time" for name in ("queue", "prefill", "decode", "inference")),
    "time_to_first_token",
    "e2e_request_latency",
)


def test_metrics_count_what_was_done(server: Running) -> None:
    def read() -> dict[str, float]:
        text = server.ask("/metrics")[1]
        families = text_string_to_metric_families(text)
        totals: dict[str, float] = defaultdict(float)
        for family in families:
            for sample in family.samples:
                if "le" not in sample.labels:
                    totals[sample.name] += sample.value
        return totals

    before = read()
    assert server.ask(COMPLETIONS, {"prompt": "abcd", "max_tokens": 5})[0] == 200
    after = read()
    grown = {name: after[name] - before[name] for name in after}
    assert grown["vllm:prompt_tokens_total"] == 4
    assert grown["vllm:generation_tokens_total"] == 5
    assert grown["vllm:time_to_first_token_seconds_count"] == 1
    assert grown["vllm:inter_token_latency_seconds_count"] == 4
    assert grown["vllm:e2e_request_latency_seconds_count"] == 1
    for name in ("queue", "prefill", "decode", "inference"):
        assert grown[f"vllm:request_{name}_time_seconds_count"] == 1
    seconds = {name: grown[f"vllm:{name}_seconds_sum"] for name in TIMES}
    queue, prefill, decode, inference, first, whole = seconds.values()
    assert 0 <= queue < first
    assert 0 < prefill < first
    assert queue + prefill == pytest.approx(first)
    assert prefill + decode == pytest.approx(inference)
    assert queue + inference == pytest.approx(whole)
    assert grown["vllm:request_params_max_tokens_sum"] == 5
    assert grown["vllm:request_success_total"] == 1
    assert after["vllm:cache_config_info"] == 1


def test_pages_elsewhere(byte_runner: Runner) -> None:
    """Browsers ask before a script of another origin may ask, and without the key."""
    config = ServerConfig(
        port=0, api_key="secret", allowed_origins='["https://a.org", "https://b.org"]'
    )
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-own"}
    with running(byte_runner, config) as server:
        for origin, status in (("https://b.org", 200), ("https://c.org", 400)):
            request = urllib.request.Request(
                server.url + COMPLETIONS, headers={**wanted, "Origin": origin}, method="OPTIONS"
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    found, headers = answer.status, answer.headers
            except urllib.error.HTTPError as error:
                found, headers = error.code, error.headers
            allowed = headers["access-control-allow-origin"]
            assert (found, allowed) == (status, origin if status == 200 else None)
        for method in ("GET", "POST"):
            assert server.ask("/ping", method=method)[0] == 200
    with pytest.raises(ServingError, match=r"--allowed_origins=\[1\]: write a,b or"):
        ServerConfig(allowed_origins="[1]")


def test_keys_and_limits(byte_runner: Runner) -> None:
    config = ServerConfig(port=0, api_key="secret", max_body_bytes=200, request_timeout=0.0)
    with running(byte_runner, config) as server:
        right = {"Authorization": "Bearer secret"}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            status, answer = server.ask("/v1/models", headers=headers)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert server.ask("/v1/models", headers=right)[0] == 200
        assert server.ask("/health")[0] == 200
        status, answer = server.ask(COMPLETIONS, {"prompt": "a" * 200}, headers=right)
        assert (status, answer["error"]["code"]) == (413, "request_too_large")
        status, answer = server.ask(COMPLETIONS, LONG, headers=right)
        assert (status, answer["error"]["code"]) == (504, "timeout")
        server.wait_until_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_a_429(byte_runner: Runner, stream: bool) -> None:
    with running(byte_runner, max_waiting=0) as server:
        status, answer = server.ask(COMPLETIONS, {"prompt": "a", "stream": stream})
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")


def test_a_stream_that_cannot_begin_is_a_400(server: Running) -> None:
    status, answer = server.ask(COMPLETIONS, {"prompt": "a" * 200, "stream": True})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


HEAD = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connect(server: Running, body: dict[str, Any]) -> socket.socket:
    """A connection that has asked."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    data = json.dumps(body).encode()
    connection.sendall(f"{HEAD}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


class GatedRunner:
    """A device that does a few steps, and waits before each of the others until the gate is
    open."""

    def __init__(self, runner: Runner, steps: int = 0) -> None:
        self._runner, self.gate, self._steps = runner, threading.Event(), steps
        self.worth_guessing = runner.worth_guessing
        self.read_blocks, self.write_blocks = runner.read_blocks, runner.write_blocks

    def reset(self) -> None:
        self._runner.reset()

    def run(self, step: Step, slots: Slots) -> Result:
        self._steps -= 1
        assert self._steps >= 0 or self.gate.wait(60)
        return self._runner.run(step, slots)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_its_place(byte_runner: Runner, stream: bool) -> None:
    runner = GatedRunner(byte_runner, steps=2 * stream)  # one goes out when the next has begun
    with running(runner) as server:
        connection = connect(server, {**LONG, "n": 4, "stream": stream})
        if stream:
            assert b"200 OK" in connection.recv(4096)
        end = time.monotonic() + 30
        while server.engine.is_idle:
            assert time.monotonic() < end, "the request has not come"
            time.sleep(0.001)
        connection.close()
        while not server.engine.is_idle:
            assert time.monotonic() < end, "nobody has cancelled the answers"
            time.sleep(0.001)
        runner.gate.set()
        server.wait_until_idle()
        assert server.engine.load().counters.generation_tokens <= 4


def test_a_reader_that_does_not_read_delays_nobody(server: Running) -> None:
    connection = connect(server, {**LONG, "n": 4, "stream": True})
    try:
        assert server.ask(COMPLETIONS, {"prompt": "b", "max_tokens": 3})[0] == 200
        server.wait_until_idle()
        text = b""
        while b"[DONE]" not in text:
            text += connection.recv(1 << 16)
        assert text.count(b'"finish_reason":"length"') == 4
    finally:
        connection.close()


def test_the_end_completes_answers_and_refuses_new_ones(byte_runner: Runner) -> None:
    answers: list[tuple[int, Any]] = []
    with running(byte_runner) as server:
        asking = threading.Thread(target=lambda: answers.append(server.ask(COMPLETIONS, LONG)))
        asking.start()
        while server.engine.load().running == 0:
            time.sleep(0.001)
        server.front.drain("SIGTERM")
        status, answer = server.ask(COMPLETIONS, {"prompt": "b"})
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        asking.join()
    ((status, answer),) = answers
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_are_not_complete_in_time_end_with_an_error(
    byte_runner: Runner, stream: bool
) -> None:
    answers: list[tuple[int, Any]] = []
    runner = GatedRunner(byte_runner, steps=2 * stream)
    with running(runner, grace=0.1) as server:
        body = {**LONG, "stream": stream}
        asking = threading.Thread(target=lambda: answers.append(server.ask(COMPLETIONS, body)))
        asking.start()
        while server.engine.is_idle or server.engine.load().counters.generation_tokens < stream:
            time.sleep(0.001)
        server.front.drain("SIGTERM")
        asking.join()
        code = server.front.wait()
        runner.gate.set()
    ((status, answer),) = answers
    if stream:
        *_, event, end = answer.removeprefix("data: ").split("\n\ndata: ")
        answer = json.loads(event)
        assert end == "[DONE]\n\n"
    assert (status, answer["error"]["code"], code) == (200 if stream else 503, "overloaded", 0)
    assert "not complete within the 0.1 s" in answer["error"]["message"]


def test_a_port_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="--port=65536: ports lie between"):
        bind(ServerConfig(port=65536))
    with bind(ServerConfig(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ServingError, match=f"cannot listen on 127.0.0.1:{port}"):
            bind(ServerConfig(port=port))
    uds = str(tmp_path / "socket")
    with bind(ServerConfig(uds=uds)), pytest.raises(ServingError, match="Give another --uds"):
        bind(ServerConfig(uds=uds))


def test_http_does_without_jax() -> None:
    """Every module of the room, in a process of its own: that of the engine alone needs JAX."""
    modules = [module.name for module in pkgutil.iter_modules(http.__path__, f"{http.__name__}.")]
    assert f"{http.__name__}.chat" in modules
    program = (
        f"import sys, {', '.join(modules)}\n"
        "print([name for name in ('jax', 'jaxlib', 'flax') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_client_that_goes_before_its_body_is_no_fault(
    byte_runner: Runner, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(byte_runner) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(f"{HEAD}Content-Length: 500\r\n\r\n{{".encode())
        assert server.ask(COMPLETIONS, {"prompt": "a", "max_tokens": 1})[0] == 200
    assert "Traceback" not in capfd.readouterr().err
