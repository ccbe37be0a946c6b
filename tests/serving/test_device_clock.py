"""Servers whose seconds are the device's: those of its programs, laid out as the simulation of
traffic does it."""

import json
from typing import Any

import jax
import numpy as np
import pytest

from launch.serving.errors import ServingError
from launch.serving.runner.meter import seconds_of
from tests.conftest import RunPython
from tests.serving import http_server
from tests.serving.device_seconds import COUNT
from tests.serving.engines import tiny_model
from tests.serving.test_http import COMPLETIONS
from tests.serving.test_speculation import PROPOSERS


def told(run_python: RunPython, what: str) -> Any:
    """What `device_seconds.py` prints where the device's time is simulated."""
    code = (
        f"import runpy, sys; sys.argv = ['-', {what!r}]\n"
        "runpy.run_module('tests.serving.device_seconds', run_name='__main__')"
    )
    done = run_python(code, {}, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def engines(run_python: RunPython) -> Any:
    return told(run_python, "engines")


@pytest.fixture(scope="module")
def server_told(run_python: RunPython) -> Any:
    return told(run_python, "server")


@pytest.mark.parametrize("number", range(4))
def test_engines_take_the_seconds_of_the_simulation(engines: Any, number: int) -> None:
    """One, and two of which the first computes the prompts; without and with a step ahead."""
    engine = engines[number]
    assert min(engine["first"]) > 0
    assert engine.get("moved", 1) > 0
    np.testing.assert_allclose(engine["first"], engine["simulated_first"], rtol=1e-12)
    np.testing.assert_allclose(engine["last"], engine["simulated_last"], rtol=1e-12)


def test_answers_tell_the_device_s_seconds(server_told: Any) -> None:
    """The clock of the second begins when it comes."""
    server = server_told
    whole = server["prefill"] + (COUNT - 1) * server["decode"]
    for seconds in server["texts"]:
        assert seconds == pytest.approx({"first_token": server["prefill"], "whole": whole})
    assert server["chat"]["whole"] > whole  # two answers
    assert server["load"] >= 2 * whole + server["chat"]["whole"]


def test_metrics_are_in_the_device_s_seconds(server_told: Any) -> None:
    server, metrics = server_told, server_told["metrics"]
    name = "vllm:e2e_request_latency_seconds"
    assert metrics[f"{name}_count"] == 4
    answers = [seconds["whole"] for seconds in server["texts"]]
    chat = metrics[f"{name}_sum"] - sum(answers)
    assert answers[0] < chat <= 2 * server["chat"]["whole"] * (1 + 1e-9)
    waited = metrics["vllm:request_queue_time_seconds_sum"]  # of the chat's second answer
    assert 0 <= waited <= 2 * server["prefill"] * (1 + 1e-9)
    inference = metrics["vllm:request_inference_time_seconds_sum"]
    assert waited + inference == pytest.approx(metrics[f"{name}_sum"])


def test_a_server_on_this_machine_s_clock_tells_none(server: http_server.Running) -> None:
    answer = server.ask(COMPLETIONS, {"prompt": "a", "max_tokens": 1})[1]
    assert "device_seconds" not in answer["usage"]
    assert server.ask("/load")[1]["device_seconds"] == 0


def test_a_platform_that_does_not_simulate() -> None:
    programs = tiny_model(jax.devices("cpu")[:1]).runner(timed=True).programs
    key = programs.keys[0]
    with pytest.raises(ServingError, match=r"does not say what .* JAX_PLATFORMS=neuron"):
        seconds_of(key, programs.get(key))


@pytest.mark.slow
def test_every_program_of_who_guesses_counts(run_python: RunPython) -> None:
    found = told(run_python, "guessing")
    assert set(found) == set(PROPOSERS)
    for name, seen in found.items():
        assert seen["guesses"] > 0, name
        assert seen["clock"] == pytest.approx(seen["programs"], rel=1e-9), name
