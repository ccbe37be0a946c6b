"""Models of transformers and diffusers from their config.json alone: no weights, no memory, no code
of theirs."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from neuronjax.errors import ConfigurationError
from neuronjax.lazy import Lazy
from neuronjax.torch import diffusion, library
from neuronjax.torch.layouts import specs, tensor_parallel
from neuronjax.torch.program import as_jax, to_jax
from neuronjax.torch.state import State

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch, transformers = Lazy("torch"), Lazy("transformers")

DEFAULT_LENGTH = 2048
"""Tokens of a text where the model's context holds as many."""
_DEPTHS = (3, 4)
_WORDS, _SIDE, _SAMPLES, _FRAMES = 512, 224, 160_000, 3000
"""Default sizes of what encoders read: tokens, sides of images, samples and frames of sound."""


class Phase(NamedTuple):
    """A workload as `neuronjax estimate` takes it, and from which depths the whole follows."""

    name: str
    make: Callable[..., dict[str, Any]]
    depths: tuple[int, int]


def phases(model: str, length: int | None = None) -> list[Phase]:
    """The phases of a model of transformers or diffusers: ``prefill`` and ``decode`` of what
    generates text from text, ``forward`` of everything else.

    Args:
      model: a directory in Hugging Face's layout, or a config.json.
      length: tokens of a text; default: what the model is usually given.

    ConfigurationError: there is no such file, neither library has the architecture, or it would run
    code of the model's own.
    """
    path = Path(model)
    file = path / "config.json" if path.is_dir() else path
    fields = _read_fields(file)
    library.load()
    if "_class_name" in fields:
        builds: dict[str, Build] = {"forward": functools.partial(_build_of_diffusers, fields)}
    else:
        config = _config(file, fields)
        is_decoder = _class_of(config).can_generate() and not config.is_encoder_decoder
        names = ("prefill", "decode") if is_decoder else ("forward",)
        build = functools.partial(_build_of_transformers, file, fields)
        builds = {name: functools.partial(build, name) for name in names}
    return [
        Phase(name, functools.partial(_make_phase, str(file), build, length), _DEPTHS)
        for name, build in builds.items()
    ]


def _read_fields(file: Path) -> dict[str, Any]:
    try:
        fields = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read as JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise ConfigurationError(f"{file} holds no object with the fields of a config.")
    return fields


class Built(NamedTuple):
    """A module on ``meta`` with arguments of its ``forward``."""

    module: torch.nn.Module
    inputs: dict[str, Any]
    tokens: int | None = None
    """Tokens that a call processes, of what reads or writes text."""
    layers: int | None = None
    """Layers of the whole model, where a shallower one stands for it."""
    keeps_cache: bool = False


Build = Callable[[int, int | None, str, int | None], Built]
"""Builds a model, given rows, tokens of a text, the type of weights and a number of layers."""


def _build_of_diffusers(
    fields: Mapping[str, Any], rows: int, length: int | None, dtype: str, _: int | None
) -> Built:
    kind = getattr(torch, dtype)
    module = diffusion.make_module(fields, kind)
    return Built(module, diffusion.make_inputs(module, rows, length, kind))


def _build_of_transformers(
    file: Path,
    fields: Mapping[str, Any],
    phase: str,
    rows: int,
    length: int | None,
    dtype: str,
    layers: int | None,
) -> Built:
    config = _config(file, fields)
    text = config.get_text_config()
    whole = getattr(text, "num_hidden_layers", None)
    is_deep = whole is not None and text is config and not config.is_encoder_decoder
    if layers and is_deep:
        _shorten(config, layers)
    kind = getattr(torch, dtype)
    module = _class_of(config)._from_config(config, dtype=kind).eval()
    inputs, tokens = _INPUTS[phase](module, config, rows, length, kind)
    return Built(module, inputs, tokens, whole if is_deep else None, phase == "decode")


def _config(file: Path, fields: Mapping[str, Any]) -> Any:
    try:
        known = transformers.CONFIG_MAPPING
    except ModuleNotFoundError:
        raise ConfigurationError(
            "architectures that models/ lacks are built by transformers, which is not installed: "
            "pip install transformers."
        ) from None
    kind = fields.get("model_type")
    if kind in known:
        return known[kind].from_dict(dict(fields))
    if "auto_map" in fields:
        raise ConfigurationError(
            f"{file} names code of its own ({', '.join(sorted(map(str, fields['auto_map'])))}), "
            "which is not run. Import its class in a file of yours, and estimate "
            "torch:FILE:FUNCTION."
        )
    raise ConfigurationError(
        f"{file} has the model_type {kind!r}, which transformers {transformers.__version__} does "
        "not know; install a newer one, or estimate torch:FILE:FUNCTION."
    )


def _class_of(config: Any) -> Any:
    """The class that the file names, or the one with a head for text, or the base model."""
    names = [*(config.architectures or ())]
    for mapping in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_MAPPING):
        if type(config) in mapping:
            names.append(mapping[type(config)].__name__)
    known = (getattr(transformers, name, None) for name in names)
    chosen = next((model for model in known if model is not None), None)
    if chosen is None:
        raise ConfigurationError(
            f"transformers has no model of {', '.join(names) or 'this config'}."
        )
    return chosen


def _make_phase(
    model: str,
    build: Build,
    length: int | None,
    *,
    mesh: AbstractMesh,
    batch: int | None = None,
    dtype: str = "bfloat16",
    layers: int | None = None,
) -> dict[str, Any]:
    """A phase of a model: `batch` counts over all cores; rows are split over the axis `data`, and
    tensors as the model's own plan says over the axis `model`."""
    rows = batch or mesh.shape.get("data", 1)
    library.load()
    with torch.device("meta"):
        built = build(rows, length, dtype, layers)
    program = to_jax(built.module, **built.inputs)
    converted = as_jax(program, ())
    state, given = converted.arguments
    cores = mesh.shape.get("model", 1)
    has_plan = cores > 1 and getattr(built.module, "tp_plan", None)
    split = specs(program, *([tensor_parallel(built.module, "model", cores)] if has_plan else []))

    def on_mesh(leaf: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    placed = State(*map(functools.partial(jax.tree.map, on_mesh), state, split))
    kind = type(built.module)
    return {
        "fn": jax.jit(converted.fn, donate_argnums=1 if built.keeps_cache else ()),
        "arguments": (
            placed,
            jax.tree.map(lambda leaf: on_mesh(leaf, _rows(leaf, rows, mesh)), given),
        ),
        "kinds": converted.kinds,
        "assumed": [f"built by {kind.__module__.partition('.')[0]} from {model}: {kind.__name__}"],
        **({"tokens": built.tokens} if built.tokens else {"samples": rows}),
        **({"layers": built.layers} if built.layers else {}),
    }


def _shorten(config: Any, layers: int) -> None:
    """Makes a config shallower; lists with an entry for each layer too."""
    whole = config.num_hidden_layers
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == whole:
            setattr(config, name, value[:layers])
    config.num_hidden_layers = layers


def _rows(leaf: Any, rows: int, mesh: AbstractMesh) -> PartitionSpec:
    """Splits what has an entry for each row, and heads of caches where they divide."""
    is_split = "data" in mesh.shape and leaf.shape[:1] == (rows,)
    names: list[str | None] = ["data" if is_split else None] * min(1, len(leaf.shape))
    if len(leaf.shape) == 4 and leaf.shape[1] % mesh.shape.get("model", 1) == 0:
        names += ["model"] if "model" in mesh.shape else []
    return PartitionSpec(*names)


Inputs = tuple[dict[str, Any], int | None]
"""Arguments of ``forward`` on ``meta``, and how many tokens they process."""


def _prefill(module: Any, config: Any, rows: int, length: int | None, dtype: Any) -> Inputs:
    tokens = min(length or DEFAULT_LENGTH, _context(config))
    return {
        "input_ids": _words(rows, tokens),
        "use_cache": False,
        "logits_to_keep": 1,
    }, rows * tokens


def _decode(module: Any, config: Any, rows: int, length: int | None, dtype: Any) -> Inputs:
    """The inputs of a step of one token for each row, after as many as the cache holds."""
    text = config.get_text_config(decoder=True)
    tokens = min(length or DEFAULT_LENGTH, _context(config))
    cache = transformers.StaticCache(config=text, max_cache_len=tokens)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cache.early_initialization(rows, heads, size, dtype, torch.device("meta"))
    taken = inspect.signature(module.forward).parameters
    name = "cache" if "cache" in taken else "past_key_values"
    return {"input_ids": _words(rows, 1), name: cache, "use_cache": True}, rows


def _forward(module: Any, config: Any, rows: int, length: int | None, dtype: Any) -> Inputs:
    taken = inspect.signature(module.forward).parameters
    names = dict.fromkeys(
        [module.main_input_name, "input_ids", "pixel_values", "decoder_input_ids"]
    )
    known = [name for name in names if name in taken and name in _SHAPES]
    inputs = {name: _SHAPES[name](config, rows, length, dtype) for name in known}
    words = inputs.get("input_ids", inputs.get("decoder_input_ids"))
    return inputs, None if words is None else words.numel()


_INPUTS: Mapping[str, Callable[..., Inputs]] = {
    "prefill": _prefill,
    "decode": _decode,
    "forward": _forward,
}


def _words(rows: int, tokens: int) -> torch.Tensor:
    return torch.empty(rows, tokens, dtype=torch.int64, device="meta")


def _text(config: Any, rows: int, length: int | None, _: Any) -> torch.Tensor:
    return _words(rows, min(length or _WORDS, _context(config)))


def _picture(config: Any, rows: int, _: int | None, dtype: Any) -> torch.Tensor:
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "image_size", _SIDE)
    sides = (side, side) if isinstance(side, int) else tuple(side)
    channels = getattr(vision, "num_channels", 3)
    return torch.empty(rows, channels, *sides, dtype=dtype, device="meta")


def _features(config: Any, rows: int, _: int | None, dtype: Any) -> torch.Tensor:
    bins = getattr(config, "num_mel_bins", 80)
    frames = 2 * getattr(config, "max_source_positions", _FRAMES // 2)
    return torch.empty(rows, bins, frames, dtype=dtype, device="meta")


def _sound(config: Any, rows: int, _: int | None, dtype: Any) -> torch.Tensor:
    return torch.empty(rows, _SAMPLES, dtype=dtype, device="meta")


_SHAPES: Mapping[str, Callable[..., torch.Tensor]] = {
    "input_ids": _text,
    "decoder_input_ids": _text,
    "pixel_values": _picture,
    "input_features": _features,
    "input_values": _sound,
}


def _context(config: Any) -> int:
    """Tokens that the model's positions reach to."""
    text = config.get_text_config()
    reach = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    return reach or DEFAULT_LENGTH
