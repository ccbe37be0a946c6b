"""What becomes of the vectors of tokens, as sentence-transformers writes it down.

Layout: sbert.net, "Creating Custom Models": modules.json lists modules and their folders.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from models.errors import ConfigError
from models.weights.fields import CONFIG_FILE, Fields, read_fields

MODULES_FILE = "modules.json"
TEXT_FILE = "sentence_bert_config.json"
SETTINGS_FILE = "config_sentence_transformers.json"
TOKENIZER_SETTINGS = "tokenizer_config.json"

CLS, MAX, MEAN, MEAN_SQRT = "cls", "max", "mean", "mean_sqrt_len_tokens"
WEIGHTED, LAST = "weightedmean", "lasttoken"

# The older fields of a Pooling module's config.json, in the order of their vectors.
_MODES: Mapping[str, str] = {
    "pooling_mode_cls_token": CLS,
    "pooling_mode_max_tokens": MAX,
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_mean_sqrt_len_tokens": MEAN_SQRT,
    "pooling_mode_weightedmean_tokens": WEIGHTED,
    "pooling_mode_lasttoken": LAST,
}
POOLINGS = tuple(_MODES.values())

# Classes of torch.nn, by their names in `models.layers.activations`.
_ACTIVATIONS: Mapping[str, str] = {
    "Identity": "linear",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
_TANH = "torch.nn.modules.activation.Tanh"


@dataclass(frozen=True)
class Pool:
    """Vectors [T, D] of tokens -> [len(modes) · D]: those of the modes, one behind the other."""

    modes: tuple[str, ...]  # of POOLINGS


@dataclass(frozen=True)
class Dense:
    """y = act(kernel · x + bias)."""

    folder: str  # of its weights
    in_dim: int
    out_dim: int
    bias: bool
    act: str


@dataclass(frozen=True)
class Normalise:
    """Scales a vector to length 1."""


Module = Pool | Dense | Normalise


@dataclass(frozen=True)
class SentenceConfig:
    """What a directory says of the vectors of its texts."""

    modules: tuple[Module, ...]  # after the transformer, in order
    longest: int | None = None  # text, in tokens; None = the model's context
    lower: bool = False  # texts are brought to lower case
    prompts: Mapping[str, str] = field(default_factory=dict)  # name -> what stands before a text
    default_prompt: str | None = None  # name of that of all texts
    similarity: str = "cosine"  # how near vectors are to each other


def is_sentence_directory(directory: Path) -> bool:
    """Whether sentence-transformers has written the directory."""
    return (directory / MODULES_FILE).is_file()


def transformer_folder(directory: Path) -> Path:
    """Where the model of a directory of texts is. Raises ConfigError."""
    if not is_sentence_directory(directory):
        return directory
    return directory / _folder(directory, _listed(directory)[0])


def read_sentence_config(directory: Path, default: str) -> SentenceConfig:
    """What the files of a directory say; `default` is the pooling where there is no modules.json.

    Raises ConfigError for files that cannot be read, and for modules that are not supported.
    """
    if not is_sentence_directory(directory):
        return SentenceConfig((Pool((default,)), Normalise()))
    first, *others = _listed(directory)
    if _kind(first) != "Transformer":
        raise _unknown(directory, first)
    folder = transformer_folder(directory)
    text, tokenizer = (_optional(folder / name) for name in (TEXT_FILE, TOKENIZER_SETTINGS))
    settings = _optional(directory / SETTINGS_FILE)
    prompts = settings.object("prompts", None)
    longest = [
        text.positive("max_seq_length", None),
        tokenizer.positive_number("model_max_length", None),
    ]
    return SentenceConfig(
        tuple(module for entry in others for module in _module(directory, entry)),
        min((int(limit) for limit in longest if limit is not None), default=None),
        text.flag("do_lower_case", False),
        {} if prompts is None else {name: prompts.text(name) for name in prompts.values},
        settings.text("default_prompt_name", None),
        settings.text("similarity_fn_name", "cosine"),
    )


def with_pooling(config: SentenceConfig, mode: str) -> SentenceConfig:
    """With another pooling, of POOLINGS."""
    modules = (Pool((mode,)) if isinstance(module, Pool) else module for module in config.modules)
    return replace(config, modules=tuple(modules))


def _listed(directory: Path) -> list[dict[str, Any]]:
    file = directory / MODULES_FILE
    try:
        entries = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not (isinstance(entries, list) and entries and all(isinstance(e, dict) for e in entries)):
        raise ConfigError(f"{file} must hold a list of modules")
    return entries


def _kind(entry: Mapping[str, Any]) -> str:
    return str(entry.get("type", "")).rpartition(".")[2]


def _folder(directory: Path, entry: Mapping[str, Any]) -> str:
    folder = str(entry.get("path", ""))
    if Path(folder).name != folder:
        raise ConfigError(
            f"{directory / MODULES_FILE} names {folder!r}, which is outside its directory"
        )
    return folder


def _module(directory: Path, entry: Mapping[str, Any]) -> list[Module]:
    """The module of an entry of modules.json; none for what changes no vector."""
    folder, kind = _folder(directory, entry), _kind(entry)
    if kind == "Dropout":
        return []
    if kind not in ("Pooling", "Dense", "Normalize"):
        raise _unknown(directory, entry)
    fields = _optional(directory / folder / CONFIG_FILE)
    for name in ("module_input_name", "module_output_name"):
        fields.refuse(name, "sentence_embedding", why="only sentence embeddings are supported")
    if kind == "Normalize":
        return [Normalise()]
    return [_pool(fields) if kind == "Pooling" else _dense(fields, folder)]


def _pool(fields: Fields) -> Pool:
    fields.refuse(
        "include_prompt", True, why="leaving the prompt out of the pooling is not supported"
    )
    named = fields.values.get("pooling_mode")
    modes = [named] if isinstance(named, str) else named
    if modes is None:
        modes = [mode for name, mode in _MODES.items() if fields.flag(name, False)] or [MEAN]
    if not (isinstance(modes, list) and modes and all(mode in POOLINGS for mode in modes)):
        raise fields.fail("pooling_mode", f"choose from {', '.join(POOLINGS)}")
    return Pool(tuple(modes))


def _dense(fields: Fields, folder: str) -> Dense:
    fields.refuse("use_residual", False, why="residual connections are not supported")
    act = fields.text("activation_function", _TANH).rpartition(".")[2]
    if act not in _ACTIVATIONS:
        raise fields.fail("activation_function", f"choose one of {', '.join(_ACTIVATIONS)}")
    return Dense(
        folder,
        fields.positive("in_features"),
        fields.positive("out_features"),
        fields.flag("bias", True),
        _ACTIVATIONS[act],
    )


def _optional(file: Path) -> Fields:
    return read_fields(file) if file.is_file() else Fields({}, str(file))


def _unknown(directory: Path, entry: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f"{directory / MODULES_FILE} has a module {_kind(entry)!r} where it is not supported: the "
        "first must be Transformer, and the others Pooling, Dense, Normalize or Dropout"
    )
