"""Two hundred requests with all that an engine can do: each gets the answer it gets alone."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.serving.adapters.stacks import Stacks
from launch.serving.engine import Engine
from launch.serving.requests import Adapter, Request
from launch.serving.runner.runner import Runner
from launch.serving.speculation.ngram import NgramProposer
from models.parameters import Parameters
from tests.launch.checkpoint_files import FIELDS, VOCAB
from tests.models.test_decoder import run
from tests.models.tiny import random_model
from tests.serving.engines import LIMITS, Answer, Clients, random_requests

BUCKETS = replace(LIMITS.buckets, decode_rows=(8,))
EVERYTHING = replace(LIMITS, guesses=3, buckets=BUCKETS)
RANK = 2


def adapter(stacks: Stacks, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0, 0.4, leaf.shape[1:]).astype(np.float32)
        for name, leaf in stacks.shapes.items()
    }


def merged(parameters: Parameters, values: Mapping[str, np.ndarray]) -> Parameters:
    """The weights with an adapter added to them, by NumPy."""
    weights = dict(parameters)
    for path in [name.removesuffix(".lora.a") for name in values if name.endswith(".a")]:
        added = np.tensordot(values[f"{path}.lora.a"], values[f"{path}.lora.b"], axes=1)
        weights[f"{path}.kernel"] = np.asarray(weights[f"{path}.kernel"]) + added
    return weights


def test_two_hundred_at_once_are_answered_as_each_alone() -> None:
    """Prefixes are shared, prompts computed in chunks, tokens guessed, adapters mixed; the cache
    holds a fraction of the texts, so that some are preempted; some clients go."""
    mesh = Mesh(np.array(jax.devices("neuron")[:1]), ("model",))
    model = random_model({**FIELDS, "num_hidden_layers": 2, "dtype": "float32"})
    whole = NamedSharding(mesh, PartitionSpec())
    model = model._replace(parameters=jax.device_put(model.parameters, whole))
    stacks = Stacks.of(model, 2, RANK)
    served = stacks.with_room(model, mesh)
    proposer = NgramProposer(EVERYTHING.guesses, 1, 3, texts=16)
    sizes = {"vocab_size": VOCAB, "proposer": proposer}
    runner = Runner(served.graph, served.parameters, mesh, EVERYTHING, **sizes)  # type: ignore[arg-type]
    values = [adapter(stacks, seed) for seed in range(2)]
    for place, own in enumerate(values, 1):
        runner.put_adapter(place, own)
    adapters = [None, *(Adapter(f"{i}", Path(f"{i}"), i, place=i) for i in (1, 2))]
    requests = [
        replace(request, adapter=adapters[index % 3])
        for index, request in enumerate(random_requests(200, seed=1, vocab_size=VOCAB))
    ]
    clients = Clients()
    with Engine(runner, EVERYTHING, clients.deliver) as engine:
        for request in requests[:150]:
            engine.submit(request)
        gone = [request.id for request in requests[5:150:7]]
        for request_id in gone:
            engine.cancel(request_id)
        for request in requests[150:]:
            engine.submit(request)
        stayed = [request for request in requests if request.id not in gone]
        answers = clients.wait(request.id for request in stayed)
        load = engine.load()
    weights = [model.parameters, *(merged(model.parameters, own) for own in values)]
    check(model.graph, weights, stayed, answers)
    counters = load.counters
    assert min(counters.prefix_hits, counters.preemptions, counters.accepted_tokens) > 0
    assert (load.running, load.waiting, load.blocks_held) == (0, 0, 0)


def check(graph, weights: list[Parameters], requests: list[Request], answers: list[Answer]) -> None:  # type: ignore[no-untyped-def]
    """Every token is the likeliest after what is before it, by a pass over whole texts with the
    weights of its adapter."""
    texts = np.zeros((len(requests), EVERYTHING.context), np.int32)
    for row, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        text = [*request.prompt, *answer.tokens]
        texts[row, : len(text)] = text
    likeliest = [np.argmax(np.asarray(run(graph, own, texts)), axis=-1) for own in weights]
    for row, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        place = 0 if request.adapter is None else request.adapter.place
        first = len(request.prompt) - 1
        expected = likeliest[place][row, first : first + len(answer.tokens)].tolist()
        assert (answer.tokens, answer.finished) == (expected, "length")
        assert len(answer.tokens) == request.max_tokens
