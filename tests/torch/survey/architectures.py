"""Tiny models of transformers, diffusers and timm with inputs, by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
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
    return inputs


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_towers(config: Any) -> bool:
    """Whether texts and images are inputs of their own, as by CLIP, and no image is a token."""
    has_image = _has(config, "image_size") or _has(config, "num_patches")
    has_both = _has(config, "vocab_size") and has_image
    return has_both and not any(
        re.fullmatch("image_token.*|media_token.*", x) for x in vars(config)
    )


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


INPUTS: dict[str, Callable[[Any], torch.Tensor]] = {
    "decoder_input_ids": _codes,
    ".*input_ids|task_inputs": _words,
    "pixel_values|pixel_values_videos|x": _pictures,
    "input_features": _spectrum,
    "input_values|audio": lambda config: torch.randn(1, 1600),
    "inputs": lambda config: torch.randn(1, LENGTH, config.d_model),
}
"""What makes an input, by the pattern of its name."""


def of_diffusers() -> dict[str, Callable[[], Model]]:
    """Denoisers and autoencoders of diffusers, by their class."""
    return {name: lambda name=name: _of_diffusers(name) for name in DIFFUSERS}


def _of_diffusers(name: str) -> Model:
    config, inputs = DIFFUSERS[name]
    torch.manual_seed(0)
    module = getattr(diffusers, name)(**config).eval()
    made = {
        key: torch.randn(value) if isinstance(value, tuple) else value
        for key, value in inputs.items()
    }
    return Model(module, {**made, "return_dict": False})


_BLOCKS = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
_IMAGE = {"sample": (1, 4, 16, 16), "timestep": torch.tensor([10])}
_TOKENS = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}

DIFFUSERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "UNet2DModel": (
        {**_BLOCKS, "sample_size": 16, "in_channels": 4, "out_channels": 4,
         "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
         "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        _IMAGE),
    "UNet2DConditionModel": (
        {**_BLOCKS, "sample_size": 16, "cross_attention_dim": 32, "attention_head_dim": 8,
         "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
         "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")},
        {**_IMAGE, "encoder_hidden_states": (1, 7, 32)}),
    "AutoencoderKL": (
        {**_BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2,
         "up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": 4},
        {"sample": (1, 3, 32, 32)}),
    "AutoencoderTiny": (
        {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16),
         "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)},
        {"sample": (1, 3, 32, 32)}),
    "VQModel": (
        {**_BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2,
         "up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": 3},
        {"sample": (1, 3, 32, 32)}),
    "DiTTransformer2DModel": (
        {**_TOKENS, "in_channels": 4, "out_channels": 8, "sample_size": 8, "norm_num_groups": 8},
        {"hidden_states": (1, 4, 8, 8), "timestep": torch.tensor([10]),
         "class_labels": torch.tensor([1])}),
    "PixArtTransformer2DModel": (
        {**_TOKENS, "in_channels": 4, "out_channels": 8, "sample_size": 8, "caption_channels": 32,
         "cross_attention_dim": 32, "norm_num_groups": 8, "use_additional_conditions": False},
        {"hidden_states": (1, 4, 8, 8), "encoder_hidden_states": (1, 7, 32),
         "timestep": torch.tensor([10]),
         "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}),
    "SD3Transformer2DModel": (
        {**_TOKENS, "sample_size": 8, "joint_attention_dim": 32, "caption_projection_dim": 32,
         "pooled_projection_dim": 32, "in_channels": 4, "out_channels": 4},
        {"hidden_states": (1, 4, 8, 8), "encoder_hidden_states": (1, 7, 32),
         "pooled_projections": (1, 32), "timestep": torch.tensor([10])}),
    "FluxTransformer2DModel": (
        {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
         "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32,
         "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
        {"hidden_states": (1, 16, 4), "encoder_hidden_states": (1, 7, 32),
         "pooled_projections": (1, 32), "timestep": torch.tensor([1.0]),
         "img_ids": (16, 3), "txt_ids": (7, 3)}),
    "PriorTransformer": (
        {**_TOKENS, "embedding_dim": 32, "num_embeddings": 7, "additional_embeddings": 4},
        {"hidden_states": (1, 32), "timestep": torch.tensor([10]), "proj_embedding": (1, 32),
         "encoder_hidden_states": (1, 7, 32)}),
    "UVit2DModel": (
        {"hidden_size": 32, "cond_embed_dim": 32, "encoder_hidden_size": 32, "vocab_size": 64,
         "codebook_size": 60, "in_channels": 32, "block_out_channels": 32, "num_res_blocks": 1,
         "num_hidden_layers": 1, "num_attention_heads": 2, "micro_cond_encode_dim": 32,
         "micro_cond_embed_dim": 192, "intermediate_size": 64, "sample_size": 8},
        {"input_ids": torch.zeros(1, 8, 8, dtype=torch.int64), "encoder_hidden_states": (1, 7, 32),
         "pooled_text_emb": (1, 32), "micro_conds": (1, 5)}),
    "LTXVideoTransformer3DModel": (
        {**_TOKENS, "in_channels": 4, "out_channels": 4, "cross_attention_dim": 32,
         "caption_channels": 32, "num_layers": 1},
        {"hidden_states": (1, 16, 4), "encoder_hidden_states": (1, 7, 32),
         "timestep": torch.tensor([10]), "encoder_attention_mask": torch.ones(1, 7).bool(),
         "num_frames": 1, "height": 4, "width": 4}),
}  # fmt: skip
"""A tiny configuration of each class, and its inputs: shapes of random tensors, or values."""
