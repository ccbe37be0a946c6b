"""The steps of every kind of model as workloads."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from launch.model_workloads import STEPS, layer_depths, phases
from models.pretrained import describe
from models.registry import ARCHITECTURES
from neuronjax.planning.fit import Verdict, fit
from neuronjax.planning.workload import Factory
from tests.models.parity.cases import GEMMA3
from tests.models.parity.media_cases import (
    AST,
    AUTOENCODER,
    BOTH,
    CONTROL,
    DPT,
    FLUX,
    PATCHTST,
    PIXART,
    RESNET,
    SDXL,
    SPEECH,
    TEXT,
    UNET,
    VISION,
    WHISPER,
    XVECTOR,
    YOLOS,
)

MESH = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
LLAMA = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
BERT = {**LLAMA, "type_vocab_size": 2}
T5 = {
    "vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip

MODELS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "text-generation": ("LlamaForCausalLM", LLAMA, ["prefill", "decode"]),
    "feature-extraction": ("BertModel", BERT, ["forward"]),
    "a decoder with a head": ("Qwen3ForSequenceClassification", LLAMA, ["forward"]),
    "fill-mask": ("BertForMaskedLM", BERT, ["forward"]),
    "question-answering": ("BertForQuestionAnswering", BERT, ["forward"]),
    "text-classification": ("BertForSequenceClassification", BERT, ["forward"]),
    "token-classification": ("BertForTokenClassification", BERT, ["forward"]),
    "multiple-choice": ("BertForMultipleChoice", BERT, ["forward"]),
    "text2text-generation": ("T5ForConditionalGeneration", T5, ["encode", "decode"]),
    "image-text-to-text": ("Gemma3ForConditionalGeneration", GEMMA3, ["prefill", "decode"]),
    "automatic-speech-recognition": (
        "WhisperForConditionalGeneration", WHISPER, ["encode", "decode"],
    ),
    "image-classification": ("ResNetForImageClassification", RESNET, ["forward"]),
    "image-segmentation": ("DPTForSemanticSegmentation", DPT, ["forward"]),
    "depth-estimation": ("DPTForDepthEstimation", DPT, ["forward"]),
    "object-detection": ("YolosForObjectDetection", YOLOS, ["forward"]),
    "audio-classification": ("ASTForAudioClassification", AST, ["forward"]),
    "audio-feature-extraction": ("ASTModel", AST, ["forward"]),
    "audio-frame-classification": ("Wav2Vec2ForAudioFrameClassification", SPEECH, ["forward"]),
    "audio-xvector": ("WavLMForXVector", SPEECH | XVECTOR, ["forward"]),
    "ctc-speech-recognition": ("HubertForCTC", SPEECH, ["forward"]),
    "time-series-forecasting": ("PatchTSTForPrediction", PATCHTST, ["forward"]),
    "image-feature-extraction": ("ViTModel", VISION, ["forward"]),
    "zero-shot-image-classification": ("CLIPModel", BOTH, ["forward"]),
    "prompt-encoding": ("CLIPTextModel", TEXT, ["forward"]),
    "denoising": ("UNet2DConditionModel", UNET | SDXL, ["forward"]),
    "denoising by patches": ("PixArtTransformer2DModel", PIXART, ["forward"]),
    "denoising with the prompt": ("FluxTransformer2DModel", FLUX, ["forward"]),
    "image-control": ("ControlNetModel", CONTROL, ["forward"]),
    "image-autoencoding": ("AutoencoderKL", AUTOENCODER, ["decode"]),
}  # fmt: skip


def _directory(folder: Path, architecture: str, config: dict[str, Any]) -> str:
    named: dict[str, Any] = {"architectures": [architecture]}
    if ARCHITECTURES[architecture].library == "diffusers":
        named = {"_class_name": architecture}
    (folder / "config.json").write_text(json.dumps({**config, **named}))
    return str(folder)


def test_every_task_has_phases() -> None:
    assert set(STEPS) == {row.task for row in ARCHITECTURES.values()}
    assert set(STEPS) <= {ARCHITECTURES[name].task for name, _, _ in MODELS.values()}


@pytest.mark.parametrize("name", MODELS)
def test_phases(name: str, tmp_path: Path) -> None:
    """Each can be traced, split over both axes, and gives back what it keeps as it was."""
    architecture, config, names = MODELS[name]
    found = phases(_directory(tmp_path, architecture, config))
    assert [phase.name for phase in found] == names
    for phase in found:
        make = pickle.loads(pickle.dumps(phase.make))  # as on their way to other processes
        made = make(mesh=MESH, batch=4)
        results = jax.eval_shape(made["fn"], *made["arguments"])
        axes = {
            axis
            for leaf in jax.tree.leaves(made["arguments"])
            for axis in jax.tree.leaves(tuple(leaf.sharding.spec))
        }
        assert "data" in axes
        assert made["samples"] == 4
        if phase.name == "decode" and len(found) == 2:
            (_, cache, _, _), (kept, tokens) = made["arguments"], results
            assert jax.tree.map(_type, cache) == jax.tree.map(_type, kept)
            assert tokens.shape == (4,)
            assert made["tokens"] == 4


def _type(leaf: Any) -> tuple[Any, ...]:
    return leaf.shape, leaf.dtype


WINDOWS = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("architecture", "changes", "depths"),
    [
        ("LlamaForCausalLM", {"num_hidden_layers": 32}, (3, 4)),
        ("BertModel", {"num_hidden_layers": 12}, (3, 4)),
        ("Qwen3ForCausalLM", {"num_hidden_layers": 8, "use_sliding_window": True,
                              "sliding_window": 8, "layer_types": WINDOWS * 4}, (2, 4)),
        ("Qwen3ForCausalLM", {"num_hidden_layers": 4, "use_sliding_window": True,
                              "sliding_window": 8, "layer_types": WINDOWS * 2}, None),
        ("Qwen3MoeForCausalLM", {"num_hidden_layers": 8, "mlp_only_layers": [0],
                                 "num_experts": 4, "num_experts_per_tok": 2,
                                 "moe_intermediate_size": 16}, (4, 5)),
        ("Qwen3MoeForCausalLM", {"num_hidden_layers": 8, "mlp_only_layers": [3, 4],
                                 "num_experts": 4, "num_experts_per_tok": 2,
                                 "moe_intermediate_size": 16}, None),
        ("ResNetForImageClassification", {}, None),
    ],
)  # fmt: skip
def test_depths_hold_whole_periods_of_layers(
    architecture: str, changes: dict[str, Any], depths: tuple[int, int] | None, tmp_path: Path
) -> None:
    config = RESNET if architecture.startswith("ResNet") else {**LLAMA, "type_vocab_size": 2}
    described = describe(Path(_directory(tmp_path, architecture, {**config, **changes})))
    assert layer_depths(described.config) == depths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "fits"), [pytest.param(4, False, id="ran out of memory"), pytest.param(1, True)]
)
def test_memory_of_a_published_report(batch: int, fits: bool) -> None:
    """Llama-2-7B over the two cores of inf2.xlarge with 2,048 slots: 4 rows ran out of memory, as
    transformers-neuronx reported, and one is served there."""
    model, length = "meta-llama/Llama-2-7b-hf", 2048
    (decode,) = (phase for phase in phases(model, length) if phase.name == "decode")
    factory = Factory(make=decode.make, name="decode")
    found = fit(factory, "inf2.xlarge", meshes=["model=2"], batch=batch, depths=decode.depths)
    assert (found.verdict is not Verdict.NOT) == fits
    if not fits:
        assert "dma rings 6.90 GiB" in found.limits[0].problem
