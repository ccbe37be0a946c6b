"""Decoders on meshes that do not divide their sizes: the same logits and texts as alone."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from models import pretrained
from models.errors import ShardingError
from models.generate import generate
from models.parameters import merge
from models.pretrained import Pretrained
from models.sampling import Sampling
from tests.models.test_decoder_families import CASES, FP32, TOKENS
from tests.models.tiny import random_model
from tests.quick_compile import QUICK_COMPILE
from tests.training.task_cases import BERT, T5

NAMES = ("GptOssForCausalLM", "Llama4ForCausalLM", "PhiForCausalLM norms of heads")


def written(directory: Path, name: str) -> Pretrained:
    case = CASES[name]
    model = random_model({**case.config, "architectures": [case.architecture]})
    pretrained.save(directory, model)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_zeros_change_nothing(
    name: str, tmp_path: Path, neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    alone = written(tmp_path / "model", name)
    mesh = Mesh(np.array(neuron_devices[:5]).reshape(1, 5), ("data", "model"))
    with pytest.raises(ShardingError, match="model=5, which does not divide"):
        pretrained.load(tmp_path / "model", mesh)
    larger = pretrained.load(tmp_path / "model", mesh, pad=True)
    config = larger.config
    assert (config.vocab_size, config.vocab_padding, config.num_kv_heads % 5) == (96, 4, 0)

    def logits(model: Pretrained) -> np.ndarray:
        run = jax.jit(merge(model.graph, model.parameters), compiler_options=QUICK_COMPILE)
        return np.asarray(run(TOKENS))

    with jax.default_device(cpu_devices[0]):
        expected = logits(
            alone._replace(parameters=jax.device_put(alone.parameters, cpu_devices[0]))
        )
    np.testing.assert_allclose(logits(larger), expected, **FP32)


def test_texts_are_the_same(tmp_path: Path, neuron_devices: list[jax.Device]) -> None:
    alone = written(tmp_path / "model", "LlamaForCausalLM 3, tied, biases")
    mesh = Mesh(np.array(neuron_devices[:6]).reshape(2, 3), ("data", "model"))
    larger = pretrained.load(tmp_path / "model", mesh, pad=True)

    def text(model: Pretrained) -> np.ndarray:
        return generate(
            model.graph,
            model.parameters,
            TOKENS,
            max_new_tokens=6,
            context=model.config.max_seq_len,
            sampling=Sampling(),
            key=jax.random.key(0),
        )

    np.testing.assert_array_equal(text(larger), text(alone))


WORDS = np.arange(24, dtype=np.int32).reshape(2, 12) % 33
CALLS = {
    "bert": (BERT, lambda model: model(WORDS)["logits"]),
    "t5": (T5, lambda model: model(source=WORDS, tokens=WORDS[:, :5])),
}
"""Families whose weights are not padded, and calls of their models."""


@pytest.mark.parametrize("family", CALLS)
def test_a_vocabulary_may_have_any_size(
    family: str, tmp_path: Path, neuron_devices: list[jax.Device]
) -> None:
    config, call = CALLS[family]
    pretrained.save(tmp_path / "model", random_model(config | {"vocab_size": 33}, stddev=0.3))

    def logits(cores: int) -> np.ndarray:
        mesh = Mesh(np.array(neuron_devices[:cores]).reshape(1, cores), ("data", "model"))
        model = pretrained.load(tmp_path / "model", mesh)
        run = jax.jit(
            lambda parameters: call(merge(model.graph, parameters)),
            compiler_options=QUICK_COMPILE,
        )
        return np.asarray(run(model.parameters))

    np.testing.assert_allclose(logits(2), logits(1), **FP32)
