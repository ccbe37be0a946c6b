"""Engines on tiny models, and clients that wait for their answers."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from launch.serving.config import EngineConfig
from launch.serving.engine import Engine
from launch.serving.requests import Logprobs, Output, Request, SamplingParameters
from launch.serving.runner.runner import Runner
from launch.serving.scheduler.buckets import Buckets
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.speculation.proposer import Proposer
from models.decoder.cache_groups import CacheGroups
from models.decoder.config import DecoderConfig
from models.parameters import Parameters, axis_names_of
from models.sharding import parameter_shardings
from tests.models.test_decoder import build

GREEDY = SamplingParameters(temperature=0)
BUCKETS = Buckets(
    decode_rows=(2, 8), prefill_rows=(1,), prefill_tokens=(8,), blocks=(12,), batched_tokens=8
)
SMALL = EngineConfig(
    max_num_seqs=4,
    num_seqs_buckets="4",
    prefill_buckets="16",
    prefill_rows_buckets="1",
    max_num_batched_tokens=16,
    block_size=4,
    num_blocks=18,
)
"""Of a server that soon runs out of blocks."""
LIMITS = SchedulerLimits(context=48, blocks=40, block_size=4, buckets=BUCKETS)


@dataclass(frozen=True)
class Model:
    """A tiny decoder on a mesh."""

    config: DecoderConfig
    graph: nnx.GraphDef[Any]
    parameters: Parameters
    mesh: Mesh

    def runner(
        self,
        limits: SchedulerLimits = LIMITS,
        proposer: Proposer | None = None,
        *,
        timed: bool = False,
        cache_groups: CacheGroups | None = None,
    ) -> Runner:
        return Runner(
            self.graph,
            self.parameters,
            self.mesh,
            limits,
            vocab_size=self.config.vocab_size,
            proposer=proposer,
            timed=timed,
            cache_groups=cache_groups,
        )


def tiny_model(devices: Sequence[jax.Device], **changes: object) -> Model:
    """On a mesh of the given devices, heads split over them."""
    config, graph, parameters = build(**{"max_seq_len": 48, **changes})
    mesh = Mesh(np.array(devices).reshape(1, -1), ("data", "model"))
    shardings = parameter_shardings(mesh, parameters, axis_names_of(graph, parameters))
    return Model(config, graph, jax.device_put(parameters, shardings), mesh)


@dataclass
class Answer:
    """What was delivered for a request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finished: str | None = None
    error: str = ""
    cached_tokens: int = 0


class Clients:
    """Receives what an engine delivers."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self._change = threading.Condition()

    def deliver(self, outputs: Sequence[Output]) -> None:
        with self._change:
            for output in outputs:
                answer = self.answers.setdefault(output.id, Answer())
                assert answer.finished is None, "an output after the last one"
                answer.tokens.extend(output.tokens)
                answer.logprobs.extend(output.logprobs)
                answer.finished, answer.error = output.finished, output.error
                answer.cached_tokens = output.cached_tokens
            self._change.notify_all()

    def wait(self, ids: Iterable[str], timeout: float = 120) -> list[Answer]:
        """The answers, once they are complete."""
        ids = list(ids)

        def complete() -> bool:
            return all(i in self.answers and self.answers[i].finished for i in ids)

        with self._change:
            assert self._change.wait_for(complete, timeout), "no answer in time"
            return [self.answers[i] for i in ids]

    def wait_for_tokens(self, request_id: str, count: int, timeout: float = 120) -> None:
        """Until an answer has so many tokens."""

        def there() -> bool:
            return request_id in self.answers and len(self.answers[request_id].tokens) >= count

        with self._change:
            assert self._change.wait_for(there, timeout), "no tokens in time"


def ask(engine: Engine, clients: Clients, requests: Sequence[Request]) -> list[Answer]:
    """Submits all at once and waits for all."""
    for request in requests:
        engine.submit(request)
    return clients.wait(request.id for request in requests)


def random_requests(
    count: int, seed: int, vocab_size: int, sampling: SamplingParameters = GREEDY
) -> list[Request]:
    """Requests of mixed lengths, many of which begin alike."""
    rng = np.random.default_rng(seed)
    stem = rng.integers(0, vocab_size, 20).tolist()
    requests = []
    for index in range(count):
        shared = int(rng.integers(0, 20)) if rng.random() < 0.6 else 0
        own = rng.integers(0, vocab_size, int(rng.integers(1, 12))).tolist()
        requests.append(
            Request(
                f"{seed}-{index}",
                stem[:shared] + own,
                int(rng.integers(1, 16)),
                replace(sampling, seed=index),
                priority=int(rng.integers(0, 3)),
            )
        )
    return requests
