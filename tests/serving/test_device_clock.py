"""Servers whose seconds are the device's: those of its programs, laid out as the simulation of
traffic does it."""

import json
from typing import Any

import jax
import numpy as np
import pytest

from launch.serving.config import EngineConfig
from launch.serving.errors import ServingError
from launch.serving.server import check_clock
from tests.conftest import RunPython
from tests.serving import http_server
from tests.serving.device_seconds import COUNT
from tests.serving.engines import tiny_model
from tests.serving.test_http import COMPLETIONS


@pytest.fixture(scope="module")
def told(run_python: RunPython) -> dict[str, Any]:
    """What `device_seconds.py` prints where the device's time is simulated."""
    code = "import runpy; runpy.run_module('tests.serving.device_seconds', run_name='__main__')"
    done = run_python(code, {}, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_engine_takes_the_seconds_of_the_simulation(told: dict[str, Any], ahead: int) -> None:
    engine = told["engines"][ahead]
    assert min(engine["first"]) > 0
    np.testing.assert_allclose(engine["first"], engine["simulated_first"], rtol=1e-12)
    np.testing.assert_allclose(engine["last"], engine["simulated_last"], rtol=1e-12)


def test_answers_tell_the_device_s_seconds(told: dict[str, Any]) -> None:
    """The clock of the second begins when it comes."""
    server = told["server"]
    whole = server["prefill"] + (COUNT - 1) * server["decode"]
    for seconds in server["texts"]:
        assert seconds == pytest.approx({"first_token": server["prefill"], "whole": whole})
    assert server["chat"]["whole"] > whole  # two answers
    assert server["load"] >= 2 * whole + server["chat"]["whole"]


def test_metrics_are_in_the_device_s_seconds(told: dict[str, Any]) -> None:
    server, metrics = told["server"], told["server"]["metrics"]
    name = "vllm:e2e_request_latency_seconds"
    assert metrics[f"{name}_count"] == 4
    answers = [seconds["whole"] for seconds in server["texts"]]
    chat = metrics[f"{name}_sum"] - sum(answers)
    assert answers[0] < chat <= 2 * server["chat"]["whole"] * (1 + 1e-9)


def test_a_server_on_this_machine_s_clock_tells_none(server: http_server.Running) -> None:
    answer = server.ask(COMPLETIONS, {"prompt": "a", "max_tokens": 1})[1]
    assert "device_seconds" not in answer["usage"]
    assert server.ask("/load")[1]["device_seconds"] == 0


def test_a_platform_that_does_not_simulate() -> None:
    programs = tiny_model(jax.devices("cpu")[:1]).runner(timed=True).programs
    with pytest.raises(ServingError, match=r"does not say what .* JAX_PLATFORMS=neuron"):
        programs.seconds(programs.keys[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"disaggregated_prefill": True},
        {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 2}'},
    ],
)
def test_what_the_clock_does_not_count(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ServingError, match=f"does not count what --{name} costs"):
        check_clock(EngineConfig(clock="device", **changes))
