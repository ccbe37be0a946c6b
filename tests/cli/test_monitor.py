"""``neuronjax monitor`` and ``top`` beside a process that runs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from neuronjax.runtime.monitor_server import Answer, MonitorServer, refusal
from tests import forked

JOB = """
import jax, jax.numpy as jnp, sys
step = jax.jit(lambda x: jax.nn.softmax(x @ x))
x = jnp.ones((256, 256), jnp.bfloat16)
for _ in range(20):
    x = step(x)
x.block_until_ready()
print("ran", flush=True)
sys.stdin.read()
"""
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "NEURON"))}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a process that ran a program 20 times, and waits."""
    number = free_port()
    given = {"JAX_PLATFORMS": "neuron", "NEURONJAX_MONITOR_PORT": str(number)}
    with subprocess.Popen(
        [sys.executable, "-c", JOB], env=ENVIRONMENT | given, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        assert job.stdout.readline() == "ran\n"
        until = time.monotonic() + 60
        while get(number, "/json")["neuron_runtime_data"][0]["report"]["execution_stats"][
            "programs_not_timed_yet"
        ]:
            assert time.monotonic() < until
            time.sleep(0.2)
        yield number
        job.communicate("")
    assert job.returncode == 0


def get(port: int, path: str) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["-m", "neuronjax.cli", *arguments], env=ENVIRONMENT)


def test_reports_are_neuron_monitors(port: int) -> None:
    done = command("monitor", f"--port={port}", "--period=600", "--count=1")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found["instance_info"]["instance_type"] == "trn2.3xlarge"
    assert found["neuron_hardware_info"]["logical_neuroncore_config"] == 2
    report = found["neuron_runtime_data"][0]["report"]
    assert report["execution_stats"]["execution_summary"]["completed"] >= 20
    assert report["execution_stats"]["latency_stats"]["device_latency"]["p50"] > 0
    assert report["execution_stats"]["latency_stats"]["total_latency"]["p50"] > 0
    cores = report["neuroncore_counters"]["neuroncores_in_use"]
    assert cores.keys() == {"0", "1", "2", "3"}
    assert 0 < cores["0"]["neuroncore_utilization"] <= 100
    assert cores["0"]["flops"] > 0
    assert cores["3"]["neuroncore_utilization"] == 0  # single-device programs run on core 0
    used = report["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"]
    assert used["neuroncore_memory_usage"]["0"]["tensors"] >= 256 * 256 * 2
    names = {each["name"]: each["executions"] for each in report["memory_used"]["loaded_models"]}
    assert 20 in names.values()


def test_metrics_are_prometheus_text(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"] == prometheus_client.CONTENT_TYPE_LATEST
        families = {
            each.name: each for each in text_string_to_metric_families(answer.read().decode())
        }
    busy = families["neuroncore_utilization_ratio"].samples
    assert {each.labels["neuroncore"] for each in busy} == {"0", "1", "2", "3"}
    assert 0 < busy[0].value <= 1
    status = {each.labels["status_type"]: each for each in families["execution_status"].samples}
    assert status["completed"].name == "execution_status_total"
    assert status["completed"].value >= 20
    assert families["neuroncore_memory_usage_tensors"].samples[0].value >= 256 * 256 * 2


def test_top_is_a_table(port: int) -> None:
    done = command("top", f"--port={port}", "--period=0.1", "--count=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("NC 0") == 2
    assert "\x1b" not in done.stdout
    assert "jit__lambda" in done.stdout


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/json?period=x", 400),
        ("/json?period=nan", 400),
        ("/json?period=-1", 400),
        ("/json?period=inf", 400),
        (f"/json?period={'9' * 9000}", 431),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bad_requests(port: int, path: str, status: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as failed:
        get(port, path)
    assert failed.value.code == status
    failed.value.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /json HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /json\r\n\r\n", b"400"),
        (b"\x16\x03\x01\xff\r\n\r\n", b"400"),
        (b"x" * 20_000, b"431"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_request(port: int, sent: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(sent)
        assert connection.recv(64).split(b" ")[1] == status


def test_half_sent_requests_hold_nobody_up(port: int) -> None:
    """200 connections that never come to their end, and one that is answered beside them."""
    with contextlib.ExitStack() as opened:
        halves = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(200)
        ]
        for connection in halves:
            connection.sendall(b"GET /json HTTP/1.1\r\nHost:")
        began = time.monotonic()
        get(port, "/json")
        assert time.monotonic() - began < 1
        assert {dropped(connection) for connection in halves} == {True}


def dropped(connection: socket.socket) -> bool:
    """Whether the other side ends the connection without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_many_requests_at_once(port: int) -> None:
    with ThreadPoolExecutor(200) as threads:
        found = list(threads.map(lambda _: get(port, "/json?period=600"), range(200)))
    pids = {each["neuron_runtime_data"][0]["pid"] for each in found}
    assert len(pids) == 1


def test_nobody_answers() -> None:
    done = command("monitor", f"--port={free_port()}")
    assert done.returncode == 2
    assert "no process answers on port" in done.stderr


def test_a_client_may_end_in_the_thread_that_answers() -> None:
    """As where the garbage collector runs there: the port is free afterwards."""
    number = free_port()
    closed: list[str] = []

    def answer(path: str) -> Answer:
        server.close()
        closed.append(path)
        return refusal(http.HTTPStatus.NOT_FOUND, "closing")

    server = MonitorServer(number, answer)
    with contextlib.suppress(OSError, http.client.HTTPException):
        urllib.request.urlopen(f"http://127.0.0.1:{number}/", timeout=10)
    server.close()
    assert closed
    socket.create_server(("127.0.0.1", number)).close()


def test_processes_end_and_clients_follow_each_other() -> None:
    code = """
import jax, jax.extend, jax.numpy as jnp
for _ in range(2):
    jax.jit(lambda x: x @ x + 1)(jnp.ones((64, 64))).block_until_ready()
    jax.clear_caches()
    jax.extend.backend.clear_backends()
print(jax.jit(lambda x: x @ x)(jnp.ones((64, 64)))[0, 0])
"""
    given = {"JAX_PLATFORMS": "neuron", "NEURONJAX_MONITOR_PORT": str(free_port())}
    done = forked.run(["-c", code], env=ENVIRONMENT | given)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "64.0\n"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "status", "kind"),
    [({"NEURON_FAIL_ON_NAN": "1"}, "completed_with_num_err", "numerical"), ({}, "completed", "")],
)
def test_failures_are_counted(variables: dict[str, str], status: str, kind: str) -> None:
    code = """
import json, os, urllib.request
import jax, jax.numpy as jnp
x = jax.device_put(-jnp.ones(8), jax.devices()[0])
try:
    jax.jit(jnp.log)(x).block_until_ready()
except jax.errors.JaxRuntimeError:
    pass
port = os.environ["NEURONJAX_MONITOR_PORT"]
found = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json?period=99"))
print(json.dumps(found["neuron_runtime_data"][0]["report"]["execution_stats"]))
"""
    given = {"JAX_PLATFORMS": "neuron", "NEURONJAX_MONITOR_PORT": str(free_port())}
    done = forked.run(["-c", code], env=ENVIRONMENT | given | variables)
    assert done.returncode == 0, done.stderr
    stats = json.loads(done.stdout)
    assert stats["execution_summary"][status] >= 1
    assert {name for name, count in stats["error_summary"].items() if count} == {kind} - {""}


def test_a_port_that_is_taken(port: int) -> None:
    given = {"JAX_PLATFORMS": "neuron", "NEURONJAX_MONITOR_PORT": str(port)}
    done = forked.run(["-c", "import jax; jax.devices()"], env=ENVIRONMENT | given)
    assert done.returncode != 0
    assert "needs a free port of its own" in done.stderr
