"""Blocks in a loop give the values of the same blocks one after another."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.beam_search import Beams
from models.errors import ConfigError
from models.generate import generate
from models.parallel.scan import scanned
from models.parameters import merge
from models.pretrained import Pretrained
from models.sampling import Sampling
from models.sharding import parameter_shardings
from tests.models.test_decoder_families import CASES
from tests.models.test_encoders import FAMILIES
from tests.models.tiny import random_model

PROMPT = np.random.default_rng(0).integers(3, 90, (2, 7)).astype(np.int32)
REAL = np.arange(7) >= np.array([[0], [3]])
SAMPLED: dict[str, Any] = {"sampling": Sampling(temperature=0.7), "sequences": 3}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "several sequences": SAMPLED,
    "beams": {"beams": Beams(3)},
}


def decoder(name: str) -> Pretrained:
    case = CASES[name]
    return random_model({**case.config, "architectures": [case.architecture]})


def looped(model: Pretrained) -> Pretrained:
    copies = {path: value.copy() for path, value in model.parameters.items()}
    graph, parameters = scanned(model.graph, copies)
    return model._replace(graph=graph, parameters=parameters)


def text(model: Pretrained, settings: dict[str, Any]) -> np.ndarray:
    given = {"sampling": Sampling(temperature=0.0), **settings}
    return generate(
        model.graph,
        model.parameters,
        PROMPT,
        real=REAL,
        max_new_tokens=20,
        context=model.config.max_seq_len,
        key=jax.random.key(0),
        **given,
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["LlamaForCausalLM 3, tied, biases", "GPTNeoXForCausalLM"])
def test_the_same_text(name: str, way: str) -> None:
    model = decoder(name)
    np.testing.assert_array_equal(text(looped(model), WAYS[way]), text(model, WAYS[way]))


@pytest.mark.slow
def test_logits_on_a_mesh() -> None:
    model = decoder("LlamaForCausalLM 3, tied, biases")
    expected = merge(model.graph, model.parameters)(PROMPT)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    where = parameter_shardings(mesh, model.parameters, model.axis_names())
    split_up = model._replace(parameters=jax.device_put(model.parameters, where))
    found = looped(split_up)
    kernel = found.parameters["blocks.0.block.mlp.up.kernel"]
    assert kernel.sharding == NamedSharding(mesh, PartitionSpec(None, None, "model"))
    logits = jax.jit(lambda weights: merge(found.graph, weights)(PROMPT))(found.parameters)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.slow
def test_encoders() -> None:
    model = random_model({**FAMILIES["Bert"], "architectures": ["BertForMaskedLM"]})
    expected = merge(model.graph, model.parameters)(PROMPT, real=REAL)["logits"]
    found = looped(model)
    logits = merge(found.graph, found.parameters)(PROMPT, real=REAL)["logits"]
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["Gemma3ForCausalLM", "GptOssForCausalLM", "AlbertModel"])
def test_blocks_that_differ_are_refused(name: str) -> None:
    albert = {**FAMILIES["Albert"], "architectures": ["AlbertModel"]}
    model = random_model(albert) if name == "AlbertModel" else decoder(name)
    with pytest.raises(ConfigError, match=r"are not alike, .* Leave out --scan_layers"):
        looped(model)
