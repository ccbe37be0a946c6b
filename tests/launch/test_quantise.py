"""Narrow weights against numpy, through files that others can read."""

import json
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from launch.errors import SettingsError
from launch.quantisation.calibration import Seen, observe
from launch.quantisation.encoding import encode
from launch.quantisation.quantise import choose, kernels, quantise
from launch.quantisation.settings import QuantisationSettings
from models import pretrained
from models.errors import ConfigError, WeightsError
from models.layers.narrow import LARGEST, Storage
from models.parameters import merge
from models.pretrained import Pretrained
from tests.models.tiny import random_model

FIELDS = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_local_experts": 4,
    "max_position_embeddings": 16,
}
FUSED = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}
TOKENS = np.random.default_rng(0).integers(0, 48, (2, 12)).astype(np.int32)
STORED = {
    "F32": np.float32,
    "I8": np.int8,
    "U8": np.uint8,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
CASES = {
    "int8 channel, experts": (FIELDS, {"weights": "int8"}),
    "int8 tensor": (FIELDS | FUSED, {"weights": "int8", "strategy": "tensor"}),
    "e4m3 channel": (FIELDS | FUSED, {"weights": "float8_e4m3", "observer": "minmax"}),
    "e5m2 block": (
        FIELDS | FUSED,
        {"weights": "float8_e5m2", "strategy": "block", "block": "16x32"},
    ),
    "mxfp8": (FIELDS | FUSED, {"weights": "mxfp8"}),
    "mxfp4": (FIELDS | FUSED, {"weights": "mxfp4", "ignore": "o_proj"}),
}


def narrowed(model: Pretrained, settings: QuantisationSettings, seen: Seen) -> Pretrained:
    chosen, left = choose(kernels(model), settings.storage, settings.ignored, model.parameters)
    return quantise(model, settings, chosen, list(left), seen)


def logits(model: Pretrained, platform: str) -> np.ndarray:
    device = jax.devices(platform)[0]
    run = jax.jit(lambda parameters, tokens: merge(model.graph, parameters)(tokens))
    return np.asarray(run(*jax.device_put((model.parameters, TOKENS), device)))


def widened(file: Path) -> dict[str, np.ndarray]:
    """All weights of a file in FP32, by the layout that compressed-tensors describes."""
    stored = stored_tensors(file)
    tensors = {}
    for name, values in stored.items():
        if name.endswith("_scale"):
            continue
        layer = name.removesuffix("_packed")
        if name != layer:
            halves = np.stack([values & 15, values >> 4], axis=-1).reshape(len(values), -1)
            values = halves.view(ml_dtypes.float4_e2m1fn)
        values = values.astype(np.float32)
        scale = stored.get(f"{layer}_scale")
        if scale is not None:
            if scale.dtype == np.uint8:
                scale = scale.view(ml_dtypes.float8_e8m0fnu)
            if scale.ndim == 1:  # of whole tensors, one for each of those that are fused
                outputs = {1: [len(values)], 2: [32, 32], 3: [64, 32, 32]}[len(scale)]
                scale = np.repeat(scale, outputs)[:, None]
            blocks = [n // m for n, m in zip(values.shape, scale.shape, strict=True)]
            values = values * np.kron(scale.astype(np.float32), np.ones(blocks, np.float32))
        tensors[layer] = values
    return tensors


def stored_tensors(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, read as its documentation says: the library for numpy
    does not know FP8."""
    raw = file.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    header.pop("__metadata__")
    return {
        name: np.frombuffer(raw[begin:], np.uint8)[slice(*row["data_offsets"])]
        .view(STORED[row["dtype"]])
        .reshape(row["shape"])
        for name, row in header.items()
    }


@pytest.mark.parametrize(("fields", "changes"), CASES.values(), ids=CASES.keys())
def test_what_is_stored_is_what_is_computed(
    fields: dict[str, object], changes: dict[str, str], tmp_path: Path
) -> None:
    """From a model to a file, and from the file to logits, which a wide model of the numbers in
    the file has too."""
    wide = random_model(fields)
    settings = QuantisationSettings(**changes)  # type: ignore[arg-type]
    narrow = narrowed(wide, settings, Seen({}, {}))
    pretrained.save(tmp_path, narrow)
    loaded = pretrained.load(tmp_path)
    assert list(loaded.parameters) == list(narrow.parameters)
    for name, value in narrow.parameters.items():
        assert loaded.parameters[name].dtype == value.dtype, name
        np.testing.assert_array_equal(loaded.parameters[name], value, err_msg=name)
    plain = tmp_path / "plain"
    plain.mkdir()
    save_file(widened(tmp_path / "model.safetensors"), plain / "model.safetensors")
    (plain / "config.json").write_text(json.dumps({**fields, "dtype": "float32"}))
    expected = logits(pretrained.load(plain), "cpu")
    platform = "cpu" if fields is FIELDS else "neuron"  # experts take long to compile
    np.testing.assert_allclose(logits(loaded, platform), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["int8", "float8_e4m3", "float8_e5m2"])
def test_numbers_are_the_nearest_and_clipping_helps(name: str) -> None:
    rng = np.random.default_rng(1)
    kernel = rng.standard_t(3, (64, 8)).astype(np.float32)
    importance = rng.uniform(0.1, 2, 64)
    storage = Storage(name)
    numbers, scale = encode(kernel, storage, None)
    np.testing.assert_allclose(np.abs(kernel).max(0) / LARGEST[name], scale[0], rtol=1e-6)
    codes = np.arange(256, dtype=np.uint8).view(numbers.dtype).astype(np.float64)
    codes = codes[np.isfinite(codes) & (np.abs(codes) <= LARGEST[name])]
    nearest = np.abs(kernel[..., None] - codes * scale[0, :, None].astype(np.float64)).min(-1)
    error = np.abs(numbers.astype(np.float64) * scale - kernel)
    np.testing.assert_allclose(error, nearest, rtol=1e-3, atol=1e-6)

    def weighted(values: np.ndarray, scales: np.ndarray) -> float:
        return float(
            (importance[:, None] * (values.astype(np.float32) * scales - kernel) ** 2).sum()
        )

    assert weighted(*encode(kernel, storage, importance)) <= weighted(numbers, scale)


def test_calibration_sees_what_layers_get() -> None:
    """The first layer's inputs are the normed embedding, which numpy can make."""
    model = random_model(FIELDS | FUSED)
    seen = observe(model, [TOKENS, TOKENS[::-1]])
    table = np.asarray(model.parameters["embedding.table"], np.float64)[TOKENS]
    normed = table / np.sqrt((table**2).mean(-1, keepdims=True) + 1e-5)
    normed = normed * np.asarray(model.parameters["blocks.0.attention_norm.scale"])
    expected = (normed**2).mean((0, 1))
    np.testing.assert_allclose(seen.inputs["blocks.0.attention.query"], expected, rtol=1e-4)
    value = np.einsum("btd,dkh->btkh", normed, model.parameters["blocks.0.attention.value.kernel"])
    np.testing.assert_allclose(seen.caches["blocks.0.attention"][1], np.abs(value).max(), rtol=1e-4)
    scaled = narrowed(model, QuantisationSettings(kv_cache_scales=True), seen)
    scale = scaled.parameters["blocks.0.attention.cache_scales.value"]
    np.testing.assert_allclose(scale, np.abs(value).max() / 240, rtol=1e-4)


def test_what_does_not_go_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--strategy=tensor"):
        QuantisationSettings(weights="mxfp4", strategy="tensor")
    with pytest.raises(SettingsError, match="--block=128"):
        _ = QuantisationSettings(block="128", strategy="block").storage
    model = random_model(FIELDS)
    every = kernels(model)
    with pytest.raises(SettingsError, match="--ignore=nothing matches no layer"):
        choose(every, Storage("int8"), ["nothing"], model.parameters)
    chosen, left = choose(every, Storage("int8", 128, 128), [], model.parameters)
    assert not chosen
    assert "cannot be divided into blocks" in next(iter(left.values()))
    pretrained.save(tmp_path, narrowed(model, QuantisationSettings(), Seen({}, {})))
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    for change, error, message in (
        (
            {"quant_method": "gptq"},
            ConfigError,
            "the supported methods are compressed-tensors, fp8, mxfp4",
        ),
        (
            {"quant_method": "mxfp4"},
            ConfigError,
            "mxfp4 is supported only for the experts of gpt-oss",
        ),
        ({"quant_method": "fp8"}, ConfigError, "give the numbers of outputs and inputs in a block"),
        (
            {"quant_method": "fp8", "activation_scheme": "static"},
            ConfigError,
            "only weights may be quantised in advance",
        ),
        ({"config_groups": {}}, ConfigError, "one group"),
        (
            {"config_groups": {"a": {"weights": {"type": "float"}}}},
            WeightsError,
            "has the dtype int8",
        ),
        (None, WeightsError, "weight_scale"),
    ):
        config = None if change is None else {**fields["quantization_config"], **change}
        file.write_text(json.dumps({**fields, "quantization_config": config}))
        with pytest.raises(error, match=message):
            pretrained.load(tmp_path)
