"""The config.json of diffusers' transformers to the configs. Defaults are those of diffusers."""

from functools import partial

from models.architecture import Architecture
from models.diffusion.flux import Flux
from models.diffusion.pixart import PixArt
from models.diffusion.transformer_config import FluxConfig, PixArtConfig
from models.diffusion.transformer_weights import FLUX, PIXART
from models.weights.fields import Fields


def _check_flux(fields: Fields) -> None:
    fields.refuse(
        "out_channels",
        fields.integer("in_channels"),
        why="a denoiser must have as many output channels as input channels",
    )


def _check_pixart(fields: Fields) -> None:
    dim = fields.positive("num_attention_heads") * fields.positive("attention_head_dim")
    fields.refuse("cross_attention_dim", dim, why=f"it must be the model's width, {dim}")


_architecture = partial(Architecture.of, model_type="", library="diffusers", task="denoising")
ARCHITECTURES = (
    _architecture(
        "FluxTransformer2DModel",
        FluxConfig(),
        Flux,
        FLUX,
        read=_check_flux,
    ),
    _architecture(
        "PixArtTransformer2DModel",
        PixArtConfig(),
        PixArt,
        PIXART,
        read=_check_pixart,
    ),
)
