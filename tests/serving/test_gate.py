"""Who may come in: names of the server, pages elsewhere, kinds of bodies, what is slow or large."""

import http.client
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launch.serving.config import ServerConfig
from launch.serving.errors import ServingError
from launch.serving.runner.runner import Runner
from tests.serving.http_server import Running, running

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
JSON = {"Content-Type": "application/json"}
BODY = {"prompt": "a", "max_tokens": 1}
MESSAGES = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}


def post(server: Running, headers: Mapping[str, str]) -> tuple[int, Any, http.client.HTTPMessage]:
    """The status, the body and the headers of the answer to a small request."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    connection.request("POST", COMPLETIONS, json.dumps(BODY), dict(headers))
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return answer.status, told, answer.headers


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        pytest.param(JSON, 200, "", id="JSON"),
        pytest.param({"Content-Type": "application/json; charset=utf-8"}, 200, "", id="charset"),
        pytest.param({"Content-Type": "text/plain"}, 415, "text/plain", id="a simple request"),
        pytest.param({}, 415, "of no type", id="no type"),
        pytest.param({**JSON, "Host": "localhost:1"}, 200, "", id="localhost"),
        pytest.param({**JSON, "Host": "[::1]:8000"}, 200, "", id="an address"),
        pytest.param({**JSON, "Host": "10.1.2.3"}, 200, "", id="another address"),
        pytest.param({**JSON, "Host": "evil.org:8000"}, 403, "--allowed_hosts=evil.org", id="DNS"),
        pytest.param({**JSON, "Host": "[::1"}, 403, "no name", id="half an address"),
        pytest.param({**JSON, "Origin": "http://evil.org"}, 403, "--allowed_origins", id="page"),
        pytest.param({**JSON, "Origin": "null"}, 403, "--allowed_origins=null", id="file"),
        pytest.param(
            {**JSON, "Host": "localhost", "Origin": "http://localhost"}, 200, "", id="own page"
        ),
    ],
)
def test_who_may_ask(
    server: Running, headers: Mapping[str, str], status: int, message: str
) -> None:
    got, told, _ = post(server, headers)
    assert got == status, told
    if message:
        assert message in told["error"]["message"]


def test_names_and_pages_that_are_allowed(byte_runner: Runner) -> None:
    config = ServerConfig(port=0, allowed_hosts="a.org", allowed_origins="https://b.org")
    with running(byte_runner, config) as server:
        assert post(server, {**JSON, "Host": "a.org", "Origin": "https://b.org"})[0] == 200
        assert post(server, {**JSON, "Host": "b.org"})[0] == 403


def test_every_answer_has_an_identifier(server: Running) -> None:
    kept = post(server, {**JSON, "X-Request-Id": "mine"})
    first, second = (post(server, JSON) for _ in range(2))
    assert kept[2]["X-Request-Id"] == "mine"
    assert first[2]["X-Request-Id"] != second[2]["X-Request-Id"]
    assert first[1]["id"] != second[1]["id"]
    assert post(server, {**JSON, "Host": "evil.org"})[2]["X-Request-Id"]


@pytest.mark.parametrize(
    ("path", "fields", "refused"),
    [
        *(
            (CHAT, {name: value}, name)
            for name, value in {
                "audio": {"voice": "alloy"},
                "chat_template": "{{ messages }}",
                "documents": [{"text": "a"}],
                "length_penalty": 0.5,
                "modalities": ["text", "audio"],
                "no_such_field": 1,
                "parallel_tool_calls": False,
                "reasoning_effort": "high",
                "store": True,
            }.items()
        ),
        (COMPLETIONS, {"suffix": "b"}, "suffix"),
        (COMPLETIONS, {"stream_options": {"no_such_field": 1}}, "stream_options.no_such_field"),
        (RESPONSES, {"reasoning": {"effort": "high"}}, "reasoning_effort"),
        (RESPONSES, {"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ("/tokenize", {"no_such_field": 1}, "no_such_field"),
    ],
)
def test_a_field_without_effect_is_refused(
    server: Running, path: str, fields: Mapping[str, Any], refused: str
) -> None:
    bodies = {CHAT: MESSAGES, RESPONSES: {"input": "a", "max_output_tokens": 1}}
    status, told = server.ask(path, {**bodies.get(path, {"prompt": "a"}), **fields})
    assert (status, told["error"]["param"]) == (400, refused)
    assert f"{refused} is not supported" in told["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_fields_about_the_sender_and_usual_values(server: Running, path: str) -> None:
    body = MESSAGES if path == CHAT else {"input": "a", "max_output_tokens": 1}
    usual = {
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "prompt_cache_key": "x",
        "safety_identifier": "x",
        "service_tier": "auto",
        "store": False,
        "user": "x",
    }
    assert server.ask(path, {**body, **usual})[0] == 200


def _connect(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"", b"408", id="nothing"),
        pytest.param(b"POST /v1/completions HTTP/1.1\r\nHost:", b"408", id="half a header"),
        pytest.param(b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 40_000, b"431", id="a long header"),
        pytest.param(
            b"GET / HTTP/1.1\r\n" + b"X-More: aaaaaaaaaa\r\n" * 3_000 + b"\r\n", b"431", id="many"
        ),
        pytest.param(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n"
            b"Content-Type: application/json\r\n\r\n{",
            b"504",
            id="half a body",
        ),
    ],
)
def test_slow_and_large_requests_end(byte_runner: Runner, sent: bytes, status: bytes) -> None:
    config = ServerConfig(port=0, header_timeout=0.5, body_timeout=0.5)
    with running(byte_runner, config) as server, _connect(server) as connection:
        connection.sendall(sent)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 " + status)


def test_connections_that_say_nothing_keep_nobody_out(byte_runner: Runner) -> None:
    with running(byte_runner, ServerConfig(port=0, header_timeout=1.0)) as server:
        idle = [_connect(server) for _ in range(300)]
        assert post(server, JSON)[0] == 200
        end = time.monotonic() + 20
        for connection in idle:
            connection.settimeout(max(0.1, end - time.monotonic()))
            assert connection.recv(100).startswith(b"HTTP/1.1 408")
            connection.close()


def test_more_connections_than_allowed(byte_runner: Runner) -> None:
    with running(byte_runner, ServerConfig(port=0, max_connections=2)) as server:
        with _connect(server), _connect(server), _connect(server) as third:
            assert third.recv(100).startswith(b"HTTP/1.1 503")
        time.sleep(0.1)
        assert post(server, JSON)[0] == 200


def test_two_keys() -> None:
    with pytest.raises(ServingError, match="give two keys"):
        ServerConfig(api_key="a", api_key_file="b").key()


@pytest.mark.parametrize("key", ["", "a b", "a\nb", "ä", "\x07"])
def test_keys_that_no_header_can_carry(tmp_path: Path, key: str) -> None:
    file = tmp_path / "key"
    file.write_text(key)
    with pytest.raises(ServingError, match="one word of printable ASCII"):
        ServerConfig(api_key_file=str(file)).key()
    file.write_text("fine\n")
    assert ServerConfig(api_key_file=str(file)).key() == "fine"
    with pytest.raises(ServingError, match="cannot be read"):
        ServerConfig(api_key_file=str(tmp_path)).key()


def _certificate(folder: Path, name: str) -> Path:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(certificate), *names],
        check=True,
        capture_output=True,
    )
    return certificate


def test_https(byte_runner: Runner, tmp_path: Path) -> None:
    own, other = _certificate(tmp_path, "own"), _certificate(tmp_path, "other")
    files = {"ssl_certfile": str(own), "ssl_keyfile": str(own.with_suffix(".key"))}
    with running(byte_runner, ServerConfig(port=0, **files)) as server:  # type: ignore[arg-type]
        trusted = ssl.create_default_context(cafile=str(own))
        address = server.url.removeprefix("http://")
        connection = http.client.HTTPSConnection(address, timeout=30, context=trusted)
        connection.request("POST", COMPLETIONS, json.dumps(BODY), JSON)
        assert connection.getresponse().status == 200
        connection.close()
    ServerConfig(**files).check_certificate()  # type: ignore[arg-type]
    mixed = ServerConfig(ssl_certfile=str(own), ssl_keyfile=str(other.with_suffix(".key")))
    for wrong in (mixed, ServerConfig(ssl_certfile="none"), ServerConfig(ssl_keyfile="none")):
        with pytest.raises(ServingError, match="--ssl_"):
            wrong.check_certificate()
