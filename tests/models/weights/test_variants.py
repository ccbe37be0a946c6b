"""Checkpoints as they were saved over the years: the same model from other sets of tensors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models import pretrained
from models.parameters import merge
from models.pretrained import Pretrained
from models.weights.directory import open_tensors
from tests.models.parity.cases import DECODER
from tests.models.parity.text_cases import ENCODER, MODERNBERT, T5
from tests.models.tiny import random_model

FILE = "model.safetensors"
Tensors = dict[str, np.ndarray]
LLAMA = DECODER | {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
BERT = ENCODER | {"architectures": ["BertModel"]}
MASKED, LABELLED = (
    ENCODER | {"architectures": [f"BertFor{head}"]}
    for head in ("MaskedLM", "SequenceClassification")
)
ENCODED = T5 | {"architectures": ["T5EncoderModel"]}
SMALL = LLAMA | {"num_hidden_layers": 1}


def compressed(kind: str, strategy: str) -> dict[str, Any]:
    """The quantization_config of vLLM's compressor, activations narrowed while the model runs."""
    weights = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": strategy}
    group = {"weights": weights, "input_activations": {"num_bits": 8, "dynamic": True}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


# Kind -> (quantization_config, dtype of the numbers, ending of the scales' keys, block of [O, I])
QUANTISED: dict[str, tuple[dict[str, Any], Any, str, Callable[[np.ndarray], tuple[int, int]]]] = {
    "fp8": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [8, 16]},
        ml_dtypes.float8_e4m3fn,
        "_scale_inv",
        lambda numbers: (8, 16),
    ),
    "int8": (
        compressed("int", "channel"),
        np.int8,
        "_scale",
        lambda numbers: (1, numbers.shape[1]),
    ),
    "fp8 of one scale": (
        compressed("float", "tensor"),
        ml_dtypes.float8_e4m3fn,
        "_scale",
        lambda numbers: numbers.shape,
    ),
}
MODERN = MODERNBERT | {"architectures": ["ModernBertModel"]}


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    """Every key that begins with `old` begins with `new`."""
    return lambda tensors: {
        new + key[len(old) :] if key.startswith(old) else key: value
        for key, value in tensors.items()
    }


def with_others(prefix: str, *keys: str) -> Callable[[Tensors], Tensors]:
    """The same under a prefix, beside the tensors of a head."""
    return lambda tensors: {
        **renamed("", prefix)(tensors),
        **dict.fromkeys(keys, np.ones((3, 5), np.float32)),
    }


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        pytest.param(LLAMA, renamed("model.embed_tokens", "lm_head"), id="only the tied head"),
        pytest.param(
            ENCODED, renamed("shared", "encoder.embed_tokens"), id="only the encoder's table"
        ),
        pytest.param(
            MASKED, renamed("cls.predictions.bias", "cls.predictions.decoder.bias"), id="old bias"
        ),
        pytest.param(LABELLED, renamed("bert.", ""), id="a head without prefix"),
        pytest.param(
            BERT,
            with_others("bert.", "cls.predictions.bias", "cls.predictions.decoder.weight"),
            id="an encoder of a fill-mask model",
        ),
        pytest.param(
            BERT, with_others("bert.", "classifier.weight"), id="an encoder of a classifier"
        ),
        pytest.param(
            MODERN, with_others("model.", "head.dense.weight", "decoder.bias"), id="another encoder"
        ),
    ],
)
def test_the_same_model(
    tmp_path: Path, fields: dict[str, Any], change: Callable[[Tensors], Tensors]
) -> None:
    model = random_model(fields)
    loaded = changed(tmp_path, model, change)
    assert loaded.config == model.config
    assert_equal(loaded, model.parameters)


def test_an_encoder_without_its_pooler(tmp_path: Path) -> None:
    model = random_model(BERT)

    def change(tensors: Tensors) -> Tensors:
        return {key: value for key, value in tensors.items() if not key.startswith("pooler")}

    loaded = changed(tmp_path, model, change)
    assert loaded.config.head.transform is False
    assert_equal(
        loaded, {k: v for k, v in model.parameters.items() if not k.startswith("head.transform")}
    )


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_is_stored_counts(tmp_path: Path, tied: bool) -> None:
    model = random_model(LLAMA)
    table = np.asarray(model.parameters["embedding.table"])
    head = table if tied else table + 1
    loaded = changed(tmp_path, model, lambda tensors: {**tensors, "lm_head.weight": head})
    expected = model.parameters if tied else {**model.parameters, "head.table": head}
    assert_equal(loaded, expected)
    assert loaded.config.tie_embeddings is tied
    again = tmp_path / "again"
    pretrained.save(again, loaded)
    assert_equal(pretrained.load(again), expected)


def test_a_file_with_a_buffer_that_its_index_lacks(tmp_path: Path) -> None:
    model = random_model(LLAMA)
    pretrained.save(tmp_path, model, shard_bytes=20_000)
    file = min(tmp_path.glob("*.safetensors"))
    save_file(
        {**load_file(file), "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)},
        file,
    )
    assert_equal(pretrained.load(tmp_path), model.parameters)


def test_a_file_without_architectures(tmp_path: Path) -> None:
    model = random_model(LLAMA)
    pretrained.save(tmp_path, model)
    values = json.loads((tmp_path / "config.json").read_text())
    values["architectures"] = None
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert_equal(pretrained.load(tmp_path), model.parameters)


def changed(directory: Path, model: Pretrained, change: Callable[[Tensors], Tensors]) -> Pretrained:
    """The model of a checkpoint whose tensors were changed."""
    pretrained.save(directory, model)
    save_file(change(load_file(directory / FILE)), directory / FILE)
    return pretrained.load(directory)


def assert_equal(loaded: Pretrained, expected: Any) -> None:
    assert set(loaded.parameters) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(loaded.parameters[name], value, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fp8", "int8", "fp8 of one scale"])
def test_quantised_weights_are_numbers_times_scales(tmp_path: Path, kind: str) -> None:
    """As DeepSeek-V3 and vLLM's compressor store them: the model is that of the products."""
    config, dtype, suffix, block_of = QUANTISED[kind]
    rng = np.random.default_rng(0)

    def change(tensors: Tensors) -> tuple[Tensors, Tensors]:
        stored, wide = dict(tensors), dict(tensors)
        for key in [key for key in tensors if key.endswith("_proj.weight")]:
            numbers = rng.integers(-8, 8, tensors[key].shape).astype(dtype)
            (rows, columns), block = numbers.shape, block_of(numbers)
            scales = rng.random((rows // block[0], columns // block[1])).astype(np.float32)
            wide[key] = numbers.astype(np.float32) * np.kron(scales, np.ones(block, np.float32))
            stored[key] = numbers
            stored[key + suffix] = scales.reshape(-1) if scales.size == 1 else scales
        return stored, wide

    check_narrow(tmp_path, SMALL, config, change)


def test_the_language_model_of_a_llama_that_sees_images(tmp_path: Path) -> None:
    """Is loaded alone, and saved as one."""
    text = SMALL | {"hidden_act": "silu", "head_dim": 8, "num_local_experts": 2}
    model = random_model(text | {"architectures": ["Llama4ForCausalLM"]})
    pretrained.save(tmp_path / "alone", model)
    tensors = tensors_of(tmp_path / "alone")
    both, image = tmp_path / "both", np.ones((2, 3), np.float32)
    both.mkdir()
    other = {"vision_model.class_embedding": image, "multi_modal_projector.linear_1.weight": image}
    save_file({**renamed("", "language_model.")(tensors), **other}, both / FILE)
    values = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": text | {"model_type": "llama4_text"},
        "dtype": "float32",
    }
    (both / "config.json").write_text(json.dumps(values))
    loaded = pretrained.load(both)
    assert loaded.config == model.config
    pretrained.save(tmp_path / "again", loaded)
    assert_same(tensors_of(tmp_path / "again"), tensors)
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert saved["architectures"] == ["Llama4ForCausalLM"]
    assert "text_config" not in saved


@pytest.mark.slow
def test_experts_of_gpt_oss_are_blocks_of_four_bits(tmp_path: Path) -> None:
    """Two numbers in a byte, the first in its low half, as transformers' MXFP4 has them."""
    rng = np.random.default_rng(0)
    fields = SMALL | {
        "architectures": ["GptOssForCausalLM"],
        "head_dim": 8,
        "intermediate_size": 64,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }

    def change(tensors: Tensors) -> tuple[Tensors, Tensors]:
        stored, wide = dict(tensors), dict(tensors)
        for key in [key for key in tensors if key.endswith("_proj") and "experts" in key]:
            experts, inputs, outputs = tensors[key].shape
            codes = rng.integers(0, 16, (experts, outputs, inputs // 32, 32), dtype=np.uint8)
            scales = rng.integers(118, 124, (experts, outputs, inputs // 32), dtype=np.uint8)
            numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
            numbers = numbers * scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[..., None]
            by_output = numbers.reshape(experts, outputs, inputs)
            wide[key] = np.ascontiguousarray(by_output.swapaxes(1, 2))
            stored[f"{key}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
            stored[f"{key}_scales"] = scales
            del stored[key]
        return stored, wide

    check_narrow(tmp_path, fields, {"quant_method": "mxfp4"}, change)


def check_narrow(
    folder: Path,
    fields: dict[str, Any],
    config: dict[str, Any],
    change: Callable[[Tensors], tuple[Tensors, Tensors]],
) -> None:
    """The model of narrow tensors is that of wide ones, and is stored as it was; `change` makes
    both of a model's tensors."""
    model = random_model(fields)
    for name in ("wide", "narrow"):
        pretrained.save(folder / name, model)
    stored, wide = change(load_file(folder / "wide" / FILE))
    save_file(wide, folder / "wide" / FILE)
    save_file(stored, folder / "narrow" / FILE)
    values = {**fields, "quantization_config": config}
    (folder / "narrow" / "config.json").write_text(json.dumps(values))
    narrow, plain = (pretrained.load(folder / name) for name in ("narrow", "wide"))
    tokens = np.arange(6, dtype=np.int32)[None]
    got, expected = (merge(m.graph, m.parameters)(tokens) for m in (narrow, plain))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    pretrained.save(folder / "again", narrow)
    assert_same(tensors_of(folder / "again"), stored)


def tensors_of(directory: Path) -> Tensors:
    return {name: np.array(stored.view()) for name, stored in open_tensors(directory).items()}


def assert_same(got: Tensors, expected: Tensors) -> None:
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_array_equal(got[name], value, err_msg=name)
