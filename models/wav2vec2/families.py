"""Wav2Vec2, HuBERT, UniSpeech, UniSpeech-SAT, WavLM: from config.json to the model. Defaults are
those of transformers."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from flax import nnx

from models.architecture import Architecture
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
_XVECTOR: Mapping[str, Any] = {
    "tdnn_dim": [512, 512, 512, 512, 1500],
    "tdnn_kernel": [5, 3, 3, 1, 1],
    "tdnn_dilation": [1, 2, 3, 1, 1],
    "xvector_output_dim": 512,
}
_OF_RELATIVES = ("feat_proj_layer_norm", "conv_pos_batch_norm", "max_bucket_distance")
_OUTPUT_ADAPTER: Mapping[str, Any] = {
    "add_adapter": False,
    "num_adapter_layers": 3,
    "adapter_kernel_size": 3,
    "adapter_stride": 2,
    "output_hidden_size": None,
}
_COMMON: Mapping[str, Any] = {
    **{
        k: v
        for k, v in write_settings(SpeechConfig()).items()
        if k not in (*_OF_RELATIVES, *_OUTPUT_ADAPTER)
    },
    "vocab_size": 32,
    "classifier_proj_size": 256,
}


class _Relative(NamedTuple):
    """A family: its classes' beginning, `model_type`, prefix of keys, and defaults of its own."""

    classes: str
    model_type: str
    prefix: str
    defaults: Mapping[str, Any]


_RELATIVES = (
    _Relative(
        "Wav2Vec2",
        "wav2vec2",
        "wav2vec2.",
        {**_XVECTOR, **_OUTPUT_ADAPTER, "adapter_attn_dim": None},
    ),
    _Relative(
        "Hubert",
        "hubert",
        "hubert.",
        {"feat_proj_layer_norm": True, "conv_pos_batch_norm": False},
    ),
    _Relative("UniSpeech", "unispeech", "unispeech.", {}),
    _Relative("UniSpeechSat", "unispeech-sat", "unispeech_sat.", _XVECTOR),
    _Relative(
        "WavLM",
        "wavlm",
        "wavlm.",
        {**_XVECTOR, **_OUTPUT_ADAPTER, "num_buckets": 320, "max_bucket_distance": 800},
    ),
)


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
    for relative in _RELATIVES:
        is_speaker = "tdnn_dim" in relative.defaults
        for head in _HEADS[: None if is_speaker else 3]:
            yield Architecture(
                name=relative.classes + head.ending,
                model_type=relative.model_type,
                family="wav2vec2",
                task=head.task,
                read_config=partial(_read, head),
                defaults={**_COMMON, **relative.defaults},
                model=head.model,
                keys=partial(key_table, relative.prefix, head.rows),
                refine=refine,
                beside=language_tensors,
            )


ARCHITECTURES = tuple(_architectures())
