"""Which head a checkpoint is read with: that of its class, of its task, or of what it holds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models import pretrained
from models.errors import ArchitectureError, WeightsError
from models.parameters import merge
from models.registry import architecture_of
from models.weights.fields import Fields
from tests.launch.random_models import write_model

TINY = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}
TOKENS = np.array([[3, 5, 7]], np.int32)

# (class of config.json, its model type, tasks) -> the class that is read.
CHOSEN = [
    ("BertForPreTraining", "bert", (), "BertForMaskedLM"),
    ("BertForPreTraining", "bert", ("feature-extraction",), "BertModel"),
    ("BertForMaskedLM", "bert", ("text-classification",), "BertForSequenceClassification"),
    ("BertForNextSentencePrediction", "bert", (), "BertModel"),
    ("MobileBertForPreTraining", "mobilebert", (), "MobileBertForMaskedLM"),
    ("ElectraForPreTraining", "electra", (), "ElectraModel"),
    ("Wav2Vec2ForPreTraining", "wav2vec2", (), "Wav2Vec2Model"),
    ("UniSpeechSatForPreTraining", "unispeech-sat", (), "UniSpeechSatModel"),
    ("BeitForMaskedImageModeling", "beit", (), "BeitModel"),
    ("ViTForImageClassification", "vit", ("image-feature-extraction",), "ViTModel"),
    ("LlamaForCausalLM", "llama", ("feature-extraction",), "LlamaModel"),
    ("T5WithLMHeadModel", "t5", (), "T5ForConditionalGeneration"),
    ("ViTModel", "vit", ("fill-mask", "image-classification"), "ViTForImageClassification"),
    ("BertModel", "bert", ("no such task",), "BertModel"),
]


@pytest.mark.parametrize(("name", "model_type", "tasks", "expected"), CHOSEN)
def test_the_class_that_is_read(
    name: str, model_type: str, tasks: tuple[str, ...], expected: str
) -> None:
    fields = Fields({"architectures": [name], "model_type": model_type}, "config.json")
    assert architecture_of(fields, tasks).name == expected


def test_other_classes_for_training_are_refused() -> None:
    with pytest.raises(ArchitectureError, match="asks for FooForPreTraining"):
        architecture_of(Fields({"architectures": ["FooForPreTraining"]}, "config.json"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", "BertForMaskedLM", TINY | {"model_type": "bert"})


def _hidden(directory: Path) -> np.ndarray:
    model = pretrained.load(directory, tasks=("feature-extraction",))
    assert model.architecture.name == "BertModel"
    return np.asarray(merge(model.graph, model.parameters)(TOKENS)["hidden"])


def _tensors(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def test_heads_beside_the_one_that_is_read_are_left_out(directory: Path) -> None:
    before = _hidden(directory)
    config = json.loads((directory / "config.json").read_text())
    config["architectures"] = ["BertForPreTraining"]
    (directory / "config.json").write_text(json.dumps(config))
    _tensors(directory, lambda held: held.update({"head.of.training": np.ones(3, np.float32)}))
    np.testing.assert_array_equal(_hidden(directory), before)
    assert pretrained.load(directory).architecture.name == "BertForMaskedLM"


def test_what_a_head_lacks_is_named(directory: Path) -> None:
    with pytest.raises(WeightsError, match=r"head\.output\.kernel \(usually stored as classifier"):
        pretrained.load(directory, tasks=("token-classification",))


def test_unknown_tensors_of_the_encoder_are_refused_with_any_head(directory: Path) -> None:
    extra = {"bert.encoder.conv.weight": np.ones(3, np.float32)}
    _tensors(directory, lambda held: held.update(extra))
    with pytest.raises(WeightsError, match=r"bert\.encoder\.conv\.weight"):
        _hidden(directory)
