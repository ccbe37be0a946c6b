"""Wav2Vec2, HuBERT, UniSpeech, UniSpeech-SAT, WavLM: from config.json to the model. Defaults are
those of transformers."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from flax import nnx

from models.architecture import Architecture
from models.published.defaults import DEFAULTS
from models.settings import read_model, write_settings
from models.wav2vec2 import model
from models.wav2vec2.adapters import language_tensors, refine
from models.wav2vec2.config import SpeechConfig
from models.wav2vec2.weights import FRAMES, LETTERS, SOUND, SPEAKER, key_table
from models.weights.fields import Fields, count_labels
from models.weights.table import Row

_NO_XVECTOR: Mapping[str, Any] = {
    "tdnn_channels": (),
    "tdnn_windows": (),
    "tdnn_dilations": (),
    "xvector_dim": None,
}
_NO_HEAD: Mapping[str, Any] = {**_NO_XVECTOR, "vocab_size": None, "classifier_dim": None}


class _Head(NamedTuple):
    """A head: the ending of its class, its task, and the sizes that it needs."""

    ending: str
    task: str
    model: Callable[..., nnx.Module]
    rows: tuple[Row, ...]
    sizes: frozenset[str]
    has_labels: bool = True


_HEADS = (
    _Head("Model", "audio-feature-extraction", model.SpeechModel, (), frozenset(), False),
    _Head(
        "ForCTC",
        "ctc-speech-recognition",
        model.SpeechRecognizer,
        LETTERS,
        frozenset({"vocab_size"}),
        False,
    ),
    _Head(
        "ForSequenceClassification",
        "audio-classification",
        model.SoundClassifier,
        SOUND,
        frozenset({"classifier_dim"}),
    ),
    _Head(
        "ForAudioFrameClassification",
        "audio-frame-classification",
        model.FrameClassifier,
        FRAMES,
        frozenset(),
    ),
    _Head("ForXVector", "audio-xvector", model.SpeakerModel, SPEAKER, frozenset(_NO_XVECTOR)),
)
_RELATIVES = {
    "wav2vec2": "Wav2Vec2",
    "hubert": "Hubert",
    "unispeech": "UniSpeech",
    "unispeech-sat": "UniSpeechSat",
    "wavlm": "WavLM",
}
"""`model_type` -> what the names of the classes begin with."""
_OF_SOME = (
    *("add_adapter", "num_adapter_layers", "adapter_kernel_size", "adapter_stride"),
    *("feat_proj_layer_norm", "conv_pos_batch_norm", "max_bucket_distance"),
)
"""Settings that not all of them know."""


def _read(head: _Head, fields: Fields) -> SpeechConfig:
    needs_frames = head.has_labels and "xvector_dim" not in head.sizes
    if needs_frames or not fields.knows("add_adapter"):
        fields.refuse("add_adapter", False, why="this model has no adapter behind its blocks")
    if not fields.knows("adapter_attn_dim"):
        fields.refuse("adapter_attn_dim", why="this model has no adapters in its blocks")
    given = {name: value for name, value in _NO_HEAD.items() if name not in head.sizes}
    labels = {"num_labels": count_labels(fields)} if head.has_labels else {}
    if fields.knows("output_hidden_size"):
        dim = fields.positive("hidden_size")
        given["adapter_dim"] = fields.positive("output_hidden_size", dim)
    return read_model(SpeechConfig, fields, **given, **labels)


def _architectures() -> Iterator[Architecture]:
    settings = {k: v for k, v in write_settings(SpeechConfig()).items() if k not in _OF_SOME}
    for model_type, classes in _RELATIVES.items():
        prefix = model_type.replace("-", "_") + "."
        is_speaker = "tdnn_dim" in DEFAULTS[model_type].config
        for head in _HEADS[: None if is_speaker else 3]:
            yield Architecture(
                name=classes + head.ending,
                model_type=model_type,
                family="wav2vec2",
                task=head.task,
                read_config=partial(_read, head),
                settings=settings,
                model=head.model,
                keys=partial(key_table, prefix, head.rows),
                refine=refine,
                beside=language_tensors,
            )


ARCHITECTURES = tuple(_architectures())
