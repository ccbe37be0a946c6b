"""What engines and servers say of a simulated device's seconds: `python -m` prints
what is asked for as JSON."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from launch.serving.answering import Answering
from launch.serving.disaggregated import Disaggregated
from launch.serving.engine import Engine
from launch.serving.requests import Output, Request
from launch.serving.runner.runner import Runner
from launch.serving.runner.transfer import Transfer
from launch.serving.scheduler.buckets import Bucket
from launch.serving.virtual.disaggregation import simulate_disaggregated
from launch.serving.virtual.one_copy import Pace
from launch.serving.virtual.outcome import Outcome
from launch.serving.virtual.simulation import simulate
from launch.serving.virtual.traffic import Arrival
from tests.serving import http_server
from tests.serving.engines import GREEDY, LIMITS, Clients, ask, random_requests, tiny_model
from tests.serving.test_engine import VOCABULARY
from tests.serving.test_http import COMPLETIONS, GatedRunner
from tests.serving.test_speculation import GUESSING, PROPOSERS

TEXTS, COUNT = 12, 5
CHAT = "/v1/chat/completions"


def greedy_step(runner: Runner, bucket: Bucket) -> float:
    """What JAX's cost analysis says of the programs of a step whose rows all draw."""
    keys = bucket, (0, bucket.rows)
    costs = (runner.programs.get(key).cost_analysis() for key in keys)
    return sum(float(cost["optimal_seconds"]) for cost in costs)


class TimedClients(Clients):
    """Keeps when each token came."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def deliver(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if output.times is not None:
                passed = output.times.ended - output.times.arrived
                self.seconds[output.id] += [passed] * len(output.tokens)
        super().deliver(outputs)


def engine_beside_simulation(ahead: int) -> dict[str, Any]:
    """When the first and the last token of each answer came, here and in the simulation of
    traffic; there are more requests than slots."""
    runner = tiny_model(jax.devices("neuron")[:1]).runner(timed=True)
    gated, arrivals, clients = GatedRunner(runner), texts(), TimedClients()
    with Engine(gated, LIMITS, clients.deliver, steps_ahead=ahead) as engine:
        answer_all(engine, gated, arrivals, clients)
    pace = Pace(lambda bucket: greedy_step(runner, bucket), ahead)
    return beside(clients, simulate(LIMITS, pace, arrivals))


def two_engines_beside_simulation(ahead: int) -> dict[str, Any]:
    """The same where the second of two devices goes on with what the first one has begun."""
    first, second = jax.devices("neuron")[:2]
    runners = [tiny_model([device]).runner(timed=True) for device in (first, second)]
    transfer = Transfer(*(runner.pages for runner in runners), LIMITS.buckets.blocks)
    gated, arrivals, clients = GatedRunner(runners[0]), texts(), TimedClients()
    with Disaggregated(
        gated,
        runners[1],
        LIMITS,
        clients.deliver,
        steps_ahead=ahead,
        moving=transfer.seconds,
    ) as engines:
        answer_all(engines, gated, arrivals, clients)
    pace = Pace(lambda bucket: greedy_step(runners[0], bucket), ahead)
    outcome = simulate_disaggregated(LIMITS, pace, transfer.seconds, arrivals)
    return {**beside(clients, outcome), "moved": engines.moved_blocks}


def texts() -> list[Arrival]:
    """More than there are slots, at the same time; one step takes each prompt."""
    rng = np.random.default_rng(0)
    return [
        Arrival(0.0, bytes(rng.integers(0, 60, 1 + index % 8).tolist()), 1 + 5 * index % 13)
        for index in range(TEXTS)
    ]


def answer_all(
    engine: Answering, gated: GatedRunner, arrivals: Sequence[Arrival], clients: Clients
) -> None:
    """The first step is that of the first prompt alone in any case."""
    for index, arrival in enumerate(arrivals):
        engine.submit(Request(str(index), list(arrival.prompt), arrival.max_tokens, GREEDY))
    gated.gate.set()
    answers = clients.wait(map(str, range(len(arrivals))))
    assert not any(answer.error for answer in answers), answers


def beside(clients: TimedClients, outcome: Outcome) -> dict[str, Any]:
    """When tokens came, and when the simulation says."""
    times = [clients.seconds[str(index)] for index in range(TEXTS)]
    return {
        "first": [seconds[0] for seconds in times],
        "last": [seconds[-1] for seconds in times],
        "simulated_first": outcome.first_token.tolist(),
        "simulated_last": outcome.finished.tolist(),
    }


def server() -> dict[str, Any]:
    """What it tells in answers, one after the other, and on its other pages."""
    runner = http_server.byte_model().runner(http_server.LIMITS, timed=True)
    buckets = {bucket.tokens: bucket for bucket in http_server.LIMITS.buckets}
    body = {"max_tokens": COUNT, "temperature": 0, "ignore_eos": True}
    with http_server.running(runner) as asked:
        texts = [asked.ask(COMPLETIONS, {**body, "prompt": text})[1] for text in ("abcd", "efgh")]
        message = {"role": "user", "content": "a"}
        chat = asked.ask(CHAT, {**body, "messages": [message], "n": 2})[1]
        load = asked.ask("/load")[1]
        page = asked.ask("/metrics")[1]
    samples = (entry for family in text_string_to_metric_families(page) for entry in family.samples)
    return {
        "prefill": greedy_step(runner, buckets[32]),
        "decode": greedy_step(runner, buckets[1]),
        "texts": [answer["usage"]["device_seconds"] for answer in texts],
        "chat": chat["usage"]["device_seconds"],
        "load": load["device_seconds"],
        "metrics": {entry.name: entry.value for entry in samples},
    }


def guessing() -> dict[str, Any]:
    """By who guesses: the engine's clock once it has answered, and what JAX's cost analysis says of
    all compiled programs that have run."""
    ran: list[float] = []
    call = jax.stages.Compiled.__call__

    def counted(program: jax.stages.Compiled, *arguments: Any) -> Any:
        cost = program.cost_analysis()
        assert cost is not None
        ran.append(float(cost["optimal_seconds"]))
        return call(program, *arguments)

    jax.stages.Compiled.__call__ = counted  # type: ignore[method-assign]
    model, found = tiny_model(jax.devices("neuron")[:1]), {}
    for name, make in PROPOSERS.items():
        runner, clients = model.runner(GUESSING, make(model), timed=True), Clients()
        ran.clear()
        with Engine(runner, GUESSING, clients.deliver) as engine:
            ask(engine, clients, random_requests(6, 0, VOCABULARY))
        load = engine.load()
        found[name] = {
            "clock": load.device_seconds,
            "programs": sum(ran),
            "guesses": load.counters.draft_tokens,
        }
    return found


TOLD: Mapping[str, Callable[[], Any]] = {
    "engines": lambda: [
        answered(ahead)
        for answered in (engine_beside_simulation, two_engines_beside_simulation)
        for ahead in (0, 1)
    ],
    "server": server,
    "guessing": guessing,
}

if __name__ == "__main__":
    os.environ["NEURONJAX_SIMULATE"] = "1"  # tests are without; the platform is not made yet
    print(json.dumps(TOLD[sys.argv[1]]()))
