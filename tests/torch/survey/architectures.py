"""Tiny models of transformers, diffusers and timm with inputs, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.torch.survey.tiny import WORDS, shrink

LENGTH = 8
"""Tokens of a text."""


class Model(NamedTuple):
    """A module in the mode of inference, with arguments of its ``forward``."""

    module: torch.nn.Module
    inputs: dict[str, Any]


def of_transformers() -> dict[str, Callable[[], Model]]:
    """The base models of all architectures, those that transformers has for most tasks first."""
    mappings = [names for name, names in vars(modeling_auto).items() if name.endswith("_NAMES")]

    def tasks(kind: str) -> int:
        return sum(kind in mapping for mapping in mappings)

    kinds = [kind for kind in modeling_auto.MODEL_MAPPING_NAMES if kind in CONFIG_MAPPING]
    ordered = sorted(kinds, key=lambda kind: (-tasks(kind), kind))
    return {kind: lambda kind=kind: _of_transformers(kind) for kind in ordered}


def _of_transformers(kind: str) -> Model:
    config = shrink(CONFIG_MAPPING[kind]())
    config.use_cache = False
    names = modeling_auto.MODEL_MAPPING_NAMES[kind]
    model = getattr(transformers, names if isinstance(names, str) else names[0])
    torch.manual_seed(0)
    module = model(config).eval()
    return Model(module, inputs_of(module, config))


def inputs_of(module: Any, config: Any) -> dict[str, Any]:
    """Random inputs of the kinds that ``forward`` takes."""
    taken = inspect.signature(module.forward).parameters
    inputs: dict[str, Any] = {}
    main = module.main_input_name
    for name in (main, "input_ids", "pixel_values", "decoder_input_ids"):
        if name == "pixel_values" and ("input_ids" in inputs and not _is_two_towers(config)):
            continue
        if name in taken and name not in inputs:
            inputs[name] = _input(name, config)
    return inputs


def _is_two_towers(config: Any) -> bool:
    """Whether images and texts are embedded side by side, as by CLIP."""
    return hasattr(config, "projection_dim") and hasattr(config, "vision_config")


def _input(name: str, config: Any) -> torch.Tensor:
    vision = getattr(config, "vision_config", config)
    if name in ("input_ids", "decoder_input_ids"):
        return torch.randint(3, WORDS // 2, (1, LENGTH))
    if name in ("pixel_values", "x"):
        size = getattr(vision, "image_size", 32)
        side = size if isinstance(size, int) else size[0]
        return torch.randn(1, getattr(vision, "num_channels", 3), side, side)
    if name == "input_features":
        bins = getattr(config, "num_mel_bins", getattr(config, "input_feat_per_channel", 80))
        frames = 2 * getattr(config, "max_source_positions", 64)
        return torch.randn(1, bins, frames)
    if name in ("input_values", "audio"):
        return torch.randn(1, 1600)
    raise NotImplementedError(f"no input is known for {name}")
