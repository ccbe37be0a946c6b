"""The config.json of diffusers' transformers to the configs. Defaults are those of diffusers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.diffusion.flux import Flux
from models.diffusion.pixart import PixArt
from models.diffusion.transformer_config import FluxConfig, PixArtConfig
from models.diffusion.transformer_weights import flux_table, pixart_table
from models.settings import read_model, write_settings
from models.weights.fields import Fields

# Fields that only other models set otherwise.
_FLUX_FIXED: Mapping[str, Any] = {"patch_size": 1}
_PIXART_FIXED: Mapping[str, Any] = {
    "activation_fn": "gelu-approximate",
    "attention_type": "default",
    "dropout": 0.0,
    "norm_elementwise_affine": False,
    "norm_type": "ada_norm_single",
    "upcast_attention": False,
}


def _read_flux(fields: Fields) -> FluxConfig:
    _refuse_others(fields, _FLUX_FIXED)
    fields.refuse(
        "out_channels",
        fields.integer("in_channels"),
        why="a denoiser must have as many output channels as input channels",
    )
    config: FluxConfig = read_model(FluxConfig, fields)
    return config


def _read_pixart(fields: Fields) -> PixArtConfig:
    _refuse_others(fields, _PIXART_FIXED)
    config: PixArtConfig = read_model(PixArtConfig, fields)
    fields.refuse(
        "cross_attention_dim", config.dim, why=f"it must be the model's width, {config.dim}"
    )
    return config


def _refuse_others(fields: Fields, fixed: Mapping[str, Any]) -> None:
    for name, value in fixed.items():
        fields.refuse(name, value, why=f"only {value} is supported")


_architecture = partial(
    Architecture, model_type="", library="diffusers", family="diffusion", task="denoising"
)
_PIXART_DEFAULTS = {
    **write_settings(PixArtConfig()),
    "interpolation_scale": None,
    "use_additional_conditions": None,
}
ARCHITECTURES = (
    _architecture(
        name="FluxTransformer2DModel",
        read_config=_read_flux,
        defaults=write_settings(FluxConfig()),
        model=Flux,
        keys=flux_table,
    ),
    _architecture(
        name="PixArtTransformer2DModel",
        read_config=_read_pixart,
        defaults=_PIXART_DEFAULTS,
        model=PixArt,
        keys=pixart_table,
    ),
)
