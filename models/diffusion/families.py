"""The config.json of diffusers' parts to the configs. Defaults are those of diffusers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.diffusion.autoencoder import Autoencoder
from models.diffusion.config import AutoencoderConfig, TimeIds, UNetConfig
from models.diffusion.control import ControlConfig, ControlNet
from models.diffusion.flux import Flux
from models.diffusion.pixart import PixArt
from models.diffusion.transformer_config import FluxConfig, PixArtConfig
from models.diffusion.transformer_weights import FLUX, PIXART
from models.diffusion.unet import UNet
from models.diffusion.weights import autoencoder_table, control_table, unet_table
from models.settings import read_model
from models.weights.fields import Fields

_DOWN = {"CrossAttnDownBlock2D": True, "DownBlock2D": False}  # has it attention?
_UP = {"CrossAttnUpBlock2D": True, "UpBlock2D": False}


def _per_level(fields: Fields, name: str, levels: int) -> tuple[int, ...]:
    """A positive integer for every level: one for all, or a list."""
    if not isinstance(fields.values.get(name), list):
        return (fields.positive(name),) * levels
    values = fields.list(name)
    if len(values) != levels or not all(isinstance(v, int) and v > 0 for v in values):
        raise fields.fail(name, f"it must have a positive integer for each of the {levels} levels")
    return tuple(values)


def _attention_of(fields: Fields, name: str, kinds: Mapping[str, bool]) -> tuple[bool, ...]:
    types = fields.texts(name)
    if not set(types) <= set(kinds):
        raise fields.fail(name, f"choose from {', '.join(kinds)}")
    return tuple(kinds[type_] for type_ in types)


def _unet(fields: Fields) -> UNetConfig:
    up_attention = _attention_of(fields, "up_block_types", _UP)[::-1]
    size = fields.pair("sample_size", 64)
    return read_model(
        UNetConfig, fields, **_descent(fields), sample_size=size, up_attention=up_attention
    )


def _control(fields: Fields) -> ControlConfig:
    order = fields.text("controlnet_conditioning_channel_order")
    if order not in ("rgb", "bgr"):
        raise fields.fail("controlnet_conditioning_channel_order", "choose rgb or bgr")
    half = _descent(fields)
    way_up = half["down_attention"]  # there is none
    return read_model(ControlConfig, fields, **half, up_attention=way_up, blue_first=order == "bgr")


def _descent(fields: Fields) -> dict[str, Any]:
    """What the denoiser and a ControlNet say in other words than those of their settings."""
    levels = len(fields.integers("block_out_channels"))
    return {
        # The field is named after the width of a head, but holds the number of heads.
        "heads": _per_level(fields, "attention_head_dim", levels),
        "depths": _per_level(fields, "transformer_layers_per_block", levels),
        "down_attention": _attention_of(fields, "down_block_types", _DOWN),
        "time_ids": _time_ids(fields),
    }


def _time_ids(fields: Fields) -> TimeIds | None:
    fields.refuse("addition_embed_type", "text_time", why="only text_time is supported")
    if "addition_embed_type" not in fields:
        return None
    return TimeIds(
        dim=fields.positive("addition_time_embed_dim"),
        input_dim=fields.positive("projection_class_embeddings_input_dim"),
    )


def _autoencoder(fields: Fields) -> AutoencoderConfig:
    _attention_of(fields, "down_block_types", {"DownEncoderBlock2D": False})
    _attention_of(fields, "up_block_types", {"UpDecoderBlock2D": False})
    shift = fields.number("shift_factor", 0.0)
    return read_model(AutoencoderConfig, fields, shift_factor=shift)


def _check_flux(fields: Fields) -> None:
    fields.refuse(
        "out_channels",
        fields.integer("in_channels"),
        why="a denoiser must have as many output channels as input channels",
    )


def _check_pixart(fields: Fields) -> None:
    dim = fields.positive("num_attention_heads") * fields.positive("attention_head_dim")
    fields.refuse("cross_attention_dim", dim, why=f"it must be the model's width, {dim}")


_transformer = partial(Architecture.of, model_type="", library="diffusers", task="denoising")
_OTHERS = tuple(
    Architecture(
        name=name,
        model_type="",
        library="diffusers",
        family="diffusion",
        task=task,
        read_config=read_config,
        model=model,
        keys=keys,
    )
    for name, task, read_config, model, keys in (
        ("UNet2DConditionModel", "denoising", _unet, UNet, unet_table),
        ("ControlNetModel", "image-control", _control, ControlNet, control_table),
        ("AutoencoderKL", "image-autoencoding", _autoencoder, Autoencoder, autoencoder_table),
    )
)
ARCHITECTURES = (
    *_OTHERS,
    _transformer("FluxTransformer2DModel", FluxConfig(), Flux, FLUX, read=_check_flux),
    _transformer("PixArtTransformer2DModel", PixArtConfig(), PixArt, PIXART, read=_check_pixart),
)
