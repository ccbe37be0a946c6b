"""Models on meshes that do not divide their sizes: the same results as alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from tests.models.parity.media_cases import LEVIT, SPEECH, SWIN, VISION, WAVLM, WHISPER, YOLOS
from tests.models.parity.text_cases import CONVBERT, DEBERTA_V2, ENCODER, ESM_2
from tests.models.parity.text_cases import T5 as T5_BASE
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
IMAGES = np.random.default_rng(0).normal(size=(2, 24, 24, 3)).astype(np.float32)
SOUNDS = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
CALLS = {
    "bert": (BERT, lambda model: model(WORDS)["logits"]),
    "t5": (T5, lambda model: model(source=WORDS, tokens=WORDS[:, :5])),
}
"""Models whose vocabulary is of any size, and calls of them."""

T5_SIZES = T5_BASE | {"num_heads": 3}
THREE = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 21}
ODD: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "DeiTForImageClassification": (VISION | THREE, lambda model: model(IMAGES)),
    "BeitModel": (
        VISION | THREE | {"use_relative_position_bias": True},
        lambda model: model.features(IMAGES).hidden,
    ),
    "YolosForObjectDetection": (
        YOLOS | THREE | {"image_size": [24, 24]},
        lambda model: model(IMAGES).boxes,
    ),
    "SwinForImageClassification": (
        SWIN | {"embed_dim": 12, "num_heads": [3, 6]},
        lambda model: model(IMAGES),
    ),
    "LevitForImageClassification": (
        LEVIT | {"image_size": 48, "num_attention_heads": [3, 5, 6]},
        lambda model: model(np.tile(IMAGES, (1, 2, 2, 1))),
    ),
    "WavLMForCTC": (SPEECH | WAVLM | THREE, lambda model: model(SOUNDS)),
    "MPNetForMaskedLM": (ENCODER | THREE, lambda model: model(WORDS)["logits"]),
    "DebertaV2ForMaskedLM": (DEBERTA_V2 | THREE, lambda model: model(WORDS)["logits"]),
    "EsmForMaskedLM": (
        ESM_2 | THREE | {"vocab_size": 33},
        lambda model: model(WORDS)["logits"],
    ),
    "ConvBertForMaskedLM": (
        CONVBERT | {"hidden_size": 24, "num_attention_heads": 6, "intermediate_size": 21},
        lambda model: model(WORDS)["logits"],
    ),
}
"""Models of three heads, or of stages with as many, and calls of them."""


@pytest.mark.parametrize("name", ODD)
def test_three_heads_run_on_two_cores(
    name: str, tmp_path: Path, cpu_devices: list[jax.Device]
) -> None:
    values, call = ODD[name]
    pretrained.save(tmp_path / "model", random_model({**values, "architectures": [name]}))

    def output(cores: int) -> np.ndarray:
        mesh = Mesh(np.array(cpu_devices[:cores]).reshape(1, cores), ("data", "model"))
        model = pretrained.load(tmp_path / "model", mesh, pad=True)
        split = [value.sharding.spec for value in model.parameters.values()]
        assert cores == 1 or any("model" in spec for spec in split)
        run = jax.jit(
            lambda parameters: call(merge(model.graph, parameters)),
            compiler_options=QUICK_COMPILE,
        )
        return np.asarray(run(model.parameters))

    np.testing.assert_allclose(output(2), output(1), **FP32)


@pytest.mark.parametrize("kind", ["T5ForConditionalGeneration", "WhisperForConditionalGeneration"])
def test_caches_hold_padded_heads(kind: str, tmp_path: Path, cpu_devices: list[jax.Device]) -> None:
    heads = ("encoder_attention_heads", "decoder_attention_heads")
    is_speech = kind.startswith("Whisper")
    values = WHISPER | {"d_model": 24} | dict.fromkeys(heads, 3) if is_speech else T5_SIZES
    pretrained.save(tmp_path / "model", random_model({**values, "architectures": [kind]}))
    features = np.random.default_rng(0).normal(size=(2, 24, 8)).astype(np.float32)
    inputs = {"features": features} if is_speech else {"source": WORDS}

    def text(cores: int) -> np.ndarray:
        mesh = Mesh(np.array(cpu_devices[:cores]).reshape(1, cores), ("data", "model"))
        model = pretrained.load(tmp_path / "model", mesh, pad=True)
        return generate(
            model.graph,
            model.parameters,
            np.full((2, 1), 3, np.int32),
            inputs=inputs,
            max_new_tokens=6,
            context=model.config.max_seq_len,
            sampling=Sampling(temperature=0.0),
            key=jax.random.key(0),
        )

    np.testing.assert_array_equal(text(2), text(1))


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
