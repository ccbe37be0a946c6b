"""Tiny models of transformers with inputs, by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name

from tests.torch.survey.tiny import IMAGE, WORDS, shrink

LENGTH = 8
"""Tokens of a text."""


class Model(NamedTuple):
    """A module in the mode of inference, with arguments of its ``forward``."""

    module: torch.nn.Module
    inputs: dict[str, Any]


def of_transformers() -> dict[str, Callable[[], Model]]:
    """The base model of each of transformers' folders, those with most files first.

    Of those with as many files, those that transformers has for most tasks are first.
    """
    mappings = [names for name, names in vars(modeling_auto).items() if name.endswith("_NAMES")]
    folders: dict[str, list[str]] = {}
    for kind in modeling_auto.MODEL_MAPPING_NAMES:
        if kind in CONFIG_MAPPING:
            folders.setdefault(model_type_to_module_name(kind), []).append(kind)

    def rank(folder: str) -> tuple[int, int, str]:
        files = [*(MODELS / folder).glob("*.py")]
        tasks = sum(_whole(folder, folders[folder]) in mapping for mapping in mappings)
        return -len(files), -tasks, folder

    kinds = [_whole(folder, folders[folder]) for folder in sorted(folders, key=rank)]
    return {kind: lambda kind=kind: _of_transformers(kind) for kind in kinds}


MODELS = Path(transformers.__file__).with_name("models")


def _whole(folder: str, kinds: list[str]) -> str:
    """The kind of a folder that is no part of another, such as the text model of one for images."""
    return next((kind for kind in kinds if kind.replace("-", "_") == folder), min(kinds, key=len))


def _of_transformers(kind: str) -> Model:
    config = shrink(CONFIG_MAPPING[kind]())
    names = modeling_auto.MODEL_MAPPING_NAMES[kind]
    model = getattr(transformers, names if isinstance(names, str) else names[0])
    torch.manual_seed(0)
    module = model(config).eval()
    return Model(module, inputs_of(module, config))


def inputs_of(module: Any, config: Any) -> dict[str, Any]:
    """Random inputs of the kinds that ``forward`` takes."""
    taken = inspect.signature(module.forward).parameters
    needed = [
        name
        for name, parameter in taken.items()
        if parameter.default is parameter.empty and parameter.kind not in _REST
    ]
    texts_only = ("input_ids" in taken or "decoder_input_ids" in taken) and not _is_towers(config)
    pictures = [] if texts_only and "pixel_values" not in needed else ["pixel_values"]
    main = module.main_input_name
    mains = [main] if isinstance(main, str) else main
    names = [*mains, "input_ids", *pictures, "decoder_input_ids", *needed]
    inputs = {name: _input(name, config) for name in dict.fromkeys(names) if name in taken}
    if "spatial_shapes" in taken and "pixel_values" in inputs:
        inputs |= _of_many_sizes(config)
    return inputs | OF_KINDS.get(config.model_type, lambda _: {})(config)


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_towers(config: Any) -> bool:
    """Whether texts and images are inputs of their own, as by CLIP, and no image is a token."""
    has_image = _has(config, "image_size") or _has(config, "num_patches")
    has_both = _has(config, "vocab_size") and has_image
    names = " ".join(vars(config))
    return has_both and not re.search(r"\b(image|media)_(\w+_)?(id|index)\b", names)


def _has(config: Any, name: str) -> bool:
    return _found(config, name, None) is not None


def _found(config: Any, name: str, default: Any) -> Any:
    """A field of a configuration, or of the first within that has it."""
    if getattr(config, name, None) is not None:
        return getattr(config, name)
    within = (part for part in vars(config).values() if hasattr(part, "model_type"))
    return next(filter(None, (_found(part, name, None) for part in within)), default)


def _input(name: str, config: Any) -> torch.Tensor:
    for pattern, make in INPUTS.items():
        if re.fullmatch(pattern, name):
            return make(config)
    raise NotImplementedError(f"no input is known for {name}")


def _words(config: Any) -> torch.Tensor:
    return torch.randint(3, WORDS // 2, (1, LENGTH))


def _codes(config: Any) -> torch.Tensor:
    """Tokens for a decoder, with one of each codebook at a time if it has several."""
    channels = getattr(getattr(config, "decoder_config", None), "num_channels", None)
    return torch.randint(3, WORDS // 2, (1, LENGTH, channels)) if channels else _words(config)


def _pictures(config: Any) -> torch.Tensor:
    """An image, or several where the model reads videos or compares two."""
    vision = getattr(config, "vision_config", config)
    size = _found(vision, "image_size", IMAGE)
    side = size if isinstance(size, int) else size[0]
    shape = (_found(vision, "num_channels", 3), side, side)
    is_pair = config.model_type in modeling_auto.MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES
    is_video = "video" in config.model_type or hasattr(config, "num_frames")
    frames = 2 if is_pair else is_video and _found(config, "num_frames", 4)
    return torch.randn(1, frames, *shape) if frames else torch.randn(1, *shape)


def _of_many_sizes(config: Any) -> dict[str, torch.Tensor]:
    """Patches of an image in a row, which ones there are, and how they lie."""
    vision = getattr(config, "vision_config", config)
    rows = IMAGE // vision.patch_size
    pixels = vision.num_channels * vision.patch_size**2
    return {
        "pixel_values": torch.randn(1, rows * rows, pixels),
        "pixel_attention_mask": torch.ones(1, rows * rows, dtype=torch.int64),
        "spatial_shapes": torch.tensor([[rows, rows]]),
    }


def _spectrum(config: Any) -> torch.Tensor:
    """Frames of bins; Whisper and its kin take bins of as many frames as their positions reach."""
    bins = _found(config, "num_mel_bins", _found(config, "input_feat_per_channel", 80))
    reach = _found(config, "max_source_positions", None)
    if reach and _has(config, "num_mel_bins"):
        return torch.randn(1, bins, 2 * reach)
    return torch.randn(1, 128, bins)


def _images_in_text(config: Any) -> dict[str, torch.Tensor]:
    """Two images, which every token sees."""
    return {
        "pixel_values": torch.randn(1, 2, *_pictures(config).shape[1:]),
        "image_attention_mask": torch.ones(1, LENGTH, 2, dtype=torch.int64),
    }


OF_KINDS: dict[str, Callable[[Any], dict[str, torch.Tensor]]] = {
    "granite_speech5_ctc": lambda config: {
        "input_features": torch.randn(1, 32, 4 * _found(config, "num_mel_bins", 80))
    },
    "idefics": _images_in_text,
    "kyutai_speech_to_text": lambda config: {
        "input_ids": torch.randint(3, WORDS // 2, (1, LENGTH, config.num_codebooks + 1))
    },
    "speecht5": lambda config: {
        name: torch.randn(1, LENGTH, config.hidden_size)
        for name in ("input_values", "decoder_input_values")
    },
    "voxtral_realtime": lambda config: {
        "input_features": torch.randn(1, config.audio_config.num_mel_bins, 8 * LENGTH)
    },
}
"""Inputs of architectures that names and signatures do not tell, by the kind."""

INPUTS: dict[str, Callable[[Any], torch.Tensor]] = {
    "decoder_input_ids": _codes,
    ".*input_ids": _words,
    "task_inputs": lambda config: torch.randint(3, WORDS // 2, (1, config.task_seq_len)),
    "pixel_values|pixel_values_videos|x": _pictures,
    "input_features": _spectrum,
    "input_values|audio": lambda config: torch.randn(1, 1600),
    "inputs": lambda config: torch.randn(1, LENGTH, config.d_model),
}
"""What makes an input, by the pattern of its name."""
