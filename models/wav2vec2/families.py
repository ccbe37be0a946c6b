"""Wav2Vec2, HuBERT, UniSpeech, UniSpeech-SAT, WavLM: from config.json and tensors to the model."""

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
from models.weights.fields import Fields, count_labels
from models.weights.rows import BlockNames, batch_norm_rows, block_rows, dense_rows, norm_rows
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_1D, OUTPUT_KERNEL, Leading

_LAYER, _BLOCK = "encoder.layers.{i}", "blocks.{i}"
_POSITIONS = "encoder.pos_conv_embed"
_PARAMETRIZED = f"{_POSITIONS}.conv.parametrizations.weight.original"
_NAMES = BlockNames(
    ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attention.out_proj",
    "feed_forward.intermediate_dense",
    "feed_forward.output_dense",
    ("layer_norm", "final_layer_norm"),
)
_BODY = (
    *dense_rows("feature_extractor.conv_layers.{i}.conv", "convolutions.{i}.conv", CONV_1D),
    *norm_rows("feature_extractor.conv_layers.{i}.layer_norm", "convolutions.{i}.norm"),
    *norm_rows("feature_projection.layer_norm", "feature_norm"),
    *dense_rows("feature_projection.projection", "projection"),
    row(f"{_POSITIONS}.conv.bias", "position_conv.bias"),
    *norm_rows("encoder.layer_norm", "norm"),
    *block_rows(_LAYER, _BLOCK, _NAMES),
    row(f"{_LAYER}.attention.gru_rel_pos_const", f"{_BLOCK}.gate.scale", Leading(1, behind=2)),
    *dense_rows(f"{_LAYER}.attention.gru_rel_pos_linear", f"{_BLOCK}.gate.linear"),
    row("encoder.layers.0.attention.rel_attn_embed.weight", "relative.table"),
    *norm_rows(f"{_LAYER}.adapter_layer.norm", f"{_BLOCK}.adapter.norm"),
    *dense_rows(f"{_LAYER}.adapter_layer.linear_1", f"{_BLOCK}.adapter.down"),
    *dense_rows(f"{_LAYER}.adapter_layer.linear_2", f"{_BLOCK}.adapter.up"),
    *dense_rows("adapter.proj", "adapter.projection"),
    *norm_rows("adapter.proj_layer_norm", "adapter.norm"),
    *dense_rows("adapter.layers.{i}.conv", "adapter.layers.{i}", CONV_1D),
)
_NORMED = (
    row(f"{_PARAMETRIZED}0", "position_conv.scale", Leading(2)),
    row(f"{_PARAMETRIZED}1", "position_conv.kernel", CONV_1D),
)
_WITH_BATCH_NORM = (
    row(f"{_POSITIONS}.conv.weight", "position_conv.kernel", CONV_1D),
    *batch_norm_rows(f"{_POSITIONS}.batch_norm", "position_norm"),
)
_LAYERS = row("layer_weights", "layer_scores")
LETTERS = tuple(dense_rows("lm_head", "letters"))
FRAMES = (_LAYERS, *dense_rows("classifier", "classifier"))
SOUND = (*FRAMES, *dense_rows("projector", "projector"))
SPEAKER = (
    *SOUND,
    *dense_rows("tdnn.{i}.kernel", "tdnn.{i}", OUTPUT_KERNEL),
    *dense_rows("feature_extractor", "embedding"),
    row("objective.weight", "speakers.kernel"),
)
_UNREAD = (  # heads of another model, and of training without labels
    r"(lm_head|projector|classifier|tdnn|feature_extractor|objective)(\.\d+\.kernel)?\.(weight|bias)",
    r"layer_weights|label_embeddings_concat",
    r"(quantizer|project_q|project_hid|ctc_proj|speaker_proj|layer_norm_for_extract)\..*",
)
_RENAMES: Mapping[str, str] = {  # as PyTorch before 2.1 has it
    rf"({_POSITIONS}\.conv)\.weight_g$": r"\1.parametrizations.weight.original0",
    rf"({_POSITIONS}\.conv)\.weight_v$": r"\1.parametrizations.weight.original1",
}


def key_table(prefix: str, head: tuple[Row, ...], config: SpeechConfig) -> KeyTable:
    """The table for one config: with a head, the backbone's keys have the prefix."""
    shown = prefix if head else ""
    body = (*_BODY, *(_WITH_BATCH_NORM if config.position_batch_norm else _NORMED))
    return KeyTable(
        (*prefixed(shown, body, "backbone."), *head),
        renames=(
            (rf"^{prefix}", ""),
            *_RENAMES.items(),
            (
                r"^(feature_extractor\.conv_layers|feature_projection|encoder|adapter)\.",
                rf"{shown}\1.",
            ),
        ),
        ignored=(
            rf"({prefix})?masked_spec_embed",
            r".*\.num_batches_tracked",
            *(() if head else _UNREAD),
        ),
    )


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
