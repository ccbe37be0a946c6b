"""What becomes of the vectors of tokens, as sentence-transformers writes it down.

Layout: sbert.net, "Creating Custom Models": modules.json lists modules and their folders.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from models.errors import ConfigError
from models.weights.fields import CONFIG_FILE, Fields, read_fields

MODULES_FILE = "modules.json"
TEXT_FILE = "sentence_bert_config.json"
SETTINGS_FILE = "config_sentence_transformers.json"
ROUTER_FILE = "router_config.json"
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


@dataclass(frozen=True)
class Splade:
    """Scores [T, V] of words at each token -> [V], log(1 + max(score, 0)) of the highest or of the
    sum (Formal et al., "SPLADE", 2021)."""

    adds: bool = False  # up those of all tokens; else the highest counts
    twice: bool = False  # the logarithm is taken of its own result


Module = Pool | Dense | Normalise | Splade

TRANSFORMER, CLIP, STATIC, ROUTER = "Transformer", "CLIPModel", "StaticEmbedding", "Router"
_SOURCES: Mapping[str, str] = {"MLMTransformer": TRANSFORMER, TRANSFORMER: TRANSFORMER, CLIP: CLIP}
"""Modules that read texts by a model of transformers, by their class -> which kind they are."""


@dataclass(frozen=True)
class SentenceConfig:
    """What a directory says of the vectors of its texts."""

    modules: tuple[Module, ...]  # after the one that reads texts, in order
    longest: int | None = None  # text, in tokens; None = the model's context
    lower: bool = False  # texts are brought to lower case
    prompts: Mapping[str, str] = field(default_factory=dict)  # name -> what stands before a text
    default_prompt: str | None = None  # name of that of all texts
    similarity: str = "cosine"  # how near vectors are to each other
    width: int | None = None  # of vectors, the rest of which is cut off
    source: str = TRANSFORMER  # what reads texts: TRANSFORMER, CLIP or STATIC
    folder: str = ""  # of its files
    # Where texts of several kinds are read by models of their own: those, by the kind's name.
    routes: Mapping[str, "SentenceConfig"] = field(default_factory=dict)

    @property
    def makes_words(self) -> bool:
        """Whether a vector has a number for each word of the vocabulary."""
        return any(isinstance(module, Splade) for module in self.modules)


def is_sentence_directory(directory: Path) -> bool:
    """Whether sentence-transformers has written the directory."""
    return (directory / MODULES_FILE).is_file()


def transformer_folder(directory: Path) -> Path:
    """The folder of the model in a directory of texts. Raises ConfigError."""
    return directory / read_sentence_config(directory, MEAN).folder


def read_sentence_config(directory: Path, default: str) -> SentenceConfig:
    """What the files of a directory say; `default` is the pooling where there is no modules.json.

    Raises ConfigError for files that cannot be read, and for modules that are not supported.
    """
    if not is_sentence_directory(directory):
        return SentenceConfig((Pool((default,)), Normalise()))
    settings = _optional(directory / SETTINGS_FILE)
    prompts = settings.object("prompts", None)
    is_sparse = settings.text("model_type", "") == "SparseEncoder"
    common = {
        "prompts": {} if prompts is None else {name: prompts.text(name) for name in prompts.values},
        "default_prompt": settings.text("default_prompt_name", None),
        "similarity": settings.text("similarity_fn_name", "dot" if is_sparse else "cosine"),
        "width": settings.positive("truncate_dim", None),
    }
    first, *others = _read_modules(directory)
    if _kind(first) != ROUTER:
        return _chain(directory, first, others, common)
    fields = read_fields(directory / _folder(directory, first) / ROUTER_FILE)
    types, structure = fields.object("types"), fields.object("structure")
    parameters = fields.object("parameters", Fields({}, fields.where))
    routes = {}
    for name in structure.values:
        parts = [{"type": types.text(part), "path": part} for part in structure.texts(name)]
        if not parts:
            raise structure.fail(name, "a route needs modules")
        routes[name] = _chain(directory, parts[0], [*parts[1:], *others], common)
    default = parameters.text("default_route", next(iter(routes), ""))
    if default not in routes:
        raise parameters.fail("default_route", f"choose one of {', '.join(routes)}")
    return replace(routes[default], routes=routes)


def _chain(
    directory: Path,
    first: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    common: Mapping[str, Any],
) -> SentenceConfig:
    """A module that reads texts, and those behind it."""
    folder = _folder(directory, first)
    modules = tuple(module for entry in others for module in _module(directory, entry))
    if _kind(first) == STATIC:
        modules = (Pool((MEAN,)), *modules)
        return SentenceConfig(modules, **common, source=STATIC, folder=folder)
    if _kind(first) not in _SOURCES:
        raise _unknown_module(directory, first)
    files = directory / folder
    text, tokenizer = (_optional(files / name) for name in (TEXT_FILE, TOKENIZER_SETTINGS))
    longest = [
        text.positive("max_seq_length", None),
        tokenizer.positive_number("model_max_length", None),
    ]
    return SentenceConfig(
        modules,
        min((int(limit) for limit in longest if limit is not None), default=None),
        text.flag("do_lower_case", False),
        **common,
        source=_SOURCES[_kind(first)],
        folder=folder,
    )


def read_scoring(directory: Path) -> tuple[SentenceConfig, str | None]:
    """What a cross-encoder's files say: where its model is, and the activation behind its logits, a
    name of `models.layers.activations`; None = the usual one. Raises ConfigError."""
    config = SentenceConfig(())
    if is_sentence_directory(directory):
        config = read_sentence_config(directory, MEAN)
    older = read_fields(directory / config.folder).object("sentence_transformers", None)
    fields = _optional(directory / SETTINGS_FILE)
    if "activation_fn" not in fields and older is not None:
        fields = older
    return config, _activation(fields, "activation_fn", None)


def _activation(fields: Fields, name: str, otherwise: str | None) -> str | None:
    """A class of torch.nn by our name for it."""
    path = fields.text(name, otherwise)
    if path is None:
        return None
    act = path.rpartition(".")[2]
    if act not in _ACTIVATIONS:
        raise fields.fail(name, f"choose one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[act]


def with_pooling(config: SentenceConfig, mode: str) -> SentenceConfig:
    """The config with another pooling, of POOLINGS."""
    modules = (Pool((mode,)) if isinstance(module, Pool) else module for module in config.modules)
    return replace(config, modules=tuple(modules))


def _read_modules(directory: Path) -> list[dict[str, Any]]:
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
    if kind not in ("Pooling", "Dense", "Normalize", "SpladePooling"):
        raise _unknown_module(directory, entry)
    fields = _optional(directory / folder / CONFIG_FILE)
    if kind == "SpladePooling":
        return [_splade(fields)]
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


def _splade(fields: Fields) -> Splade:
    fields.refuse("pooling_strategy", "max", "sum", why="choose max or sum")
    fields.refuse("activation_function", "relu", "log1p_relu", why="choose relu or log1p_relu")
    return Splade(
        adds=fields.text("pooling_strategy", "max") == "sum",
        twice=fields.text("activation_function", "relu") == "log1p_relu",
    )


def _dense(fields: Fields, folder: str) -> Dense:
    fields.refuse("use_residual", False, why="residual connections are not supported")
    act = _activation(fields, "activation_function", _TANH)
    return Dense(
        folder,
        fields.positive("in_features"),
        fields.positive("out_features"),
        fields.flag("bias", True),
        act or "linear",
    )


def _optional(file: Path) -> Fields:
    return read_fields(file) if file.is_file() else Fields({}, str(file))


def _unknown_module(directory: Path, entry: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f"{directory / MODULES_FILE} has a module {_kind(entry)!r} where it is not supported: the "
        "first must be Transformer, CLIPModel, StaticEmbedding or Router, and the others Pooling, "
        "SpladePooling, Dense, Normalize or Dropout"
    )
