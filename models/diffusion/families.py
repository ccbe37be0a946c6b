"""The config.json of diffusers' parts to the configs. Defaults are those of diffusers."""

from collections.abc import Mapping
from typing import Any

from models.architecture import Architecture
from models.diffusion.autoencoder import Autoencoder
from models.diffusion.config import AutoencoderConfig, TimeIds, UNetConfig
from models.diffusion.control import ControlConfig, ControlNet
from models.diffusion.unet import UNet
from models.diffusion.weights import autoencoder_table, control_table, unet_table
from models.weights.fields import Fields, read_dtype

_DOWN = {"CrossAttnDownBlock2D": True, "DownBlock2D": False}  # has it attention?
_UP = {"CrossAttnUpBlock2D": True, "UpBlock2D": False}


def _per_level(fields: Fields, name: str, default: int, levels: int) -> tuple[int, ...]:
    """A positive integer for every level: one for all, or a list."""
    if not isinstance(fields.values.get(name), list):
        return (fields.positive(name, default),) * levels
    values = fields.list(name)
    if len(values) != levels or not all(isinstance(v, int) and v > 0 for v in values):
        raise fields.fail(name, f"it must have a positive integer for each of the {levels} levels")
    return tuple(values)


def _attention_of(
    fields: Fields, name: str, kinds: Mapping[str, bool], default: list[str]
) -> tuple[bool, ...]:
    types = fields.texts(name, default)
    if not set(types) <= set(kinds):
        raise fields.fail(name, f"choose from {', '.join(kinds)}")
    return tuple(kinds[type_] for type_ in types)


def _unet(fields: Fields) -> UNetConfig:
    return UNetConfig(
        **_descent(fields),
        sample_size=fields.pair("sample_size", 64),
        out_channels=fields.positive("out_channels", 4),
        up_attention=_attention_of(
            fields, "up_block_types", _UP, ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3
        )[::-1],
        guidance_dim=fields.positive("time_cond_proj_dim", None),
    )


def _control(fields: Fields) -> ControlConfig:
    order = fields.text("controlnet_conditioning_channel_order", "rgb")
    if order not in ("rgb", "bgr"):
        raise fields.fail("controlnet_conditioning_channel_order", "choose rgb or bgr")
    half = _descent(fields)
    return ControlConfig(
        **half,
        up_attention=half["down_attention"],  # there is no way up
        image_channels=fields.positive("conditioning_channels", 3),
        image_widths=fields.integers("conditioning_embedding_out_channels", (16, 32, 96, 256)),
        blue_first=order == "bgr",
    )


def _descent(fields: Fields) -> dict[str, Any]:
    """What the denoiser and a ControlNet say in the same words."""
    channels = fields.integers("block_out_channels", (320, 640, 1280, 1280))
    levels = len(channels)
    dtype = read_dtype(fields)
    return {
        "in_channels": fields.positive("in_channels", 4),
        "channels": channels,
        "layers": fields.positive("layers_per_block", 2),
        # The field is named after the width of a head, but holds the number of heads.
        "heads": _per_level(fields, "attention_head_dim", 8, levels),
        "depths": _per_level(fields, "transformer_layers_per_block", 1, levels),
        "down_attention": _attention_of(
            fields, "down_block_types", _DOWN, ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"]
        ),
        "context_dim": fields.positive("cross_attention_dim", 1280),
        "groups": fields.positive("norm_num_groups", 32),
        "norm_eps": fields.number("norm_eps", 1e-5),
        "cosine_first": fields.flag("flip_sin_to_cos", True),
        "frequency_shift": fields.number("freq_shift", 0.0),
        "linear_projections": fields.flag("use_linear_projection", False),
        "time_ids": _time_ids(fields),
        "dtype": dtype,
        "param_dtype": dtype,
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
    channels = tuple(fields.list("block_out_channels", [64]))
    for name, kind in (
        ("down_block_types", "DownEncoderBlock2D"),
        ("up_block_types", "UpDecoderBlock2D"),
    ):
        _attention_of(fields, name, {kind: False}, [kind])
    dtype = read_dtype(fields)
    return AutoencoderConfig(
        sample_size=fields.positive("sample_size", 32),
        image_channels=fields.positive("in_channels", 3),
        latent_channels=fields.positive("latent_channels", 4),
        channels=channels,
        layers=fields.positive("layers_per_block", 1),
        groups=fields.positive("norm_num_groups", 32),
        scaling_factor=fields.number("scaling_factor", 0.18215),
        shift_factor=fields.number("shift_factor", 0.0),
        quant_conv=fields.flag("use_quant_conv", True),
        post_quant_conv=fields.flag("use_post_quant_conv", True),
        attention=fields.flag("mid_block_add_attention", True),
        dtype=dtype,
        param_dtype=dtype,
    )


ARCHITECTURES = (
    Architecture(
        name="UNet2DConditionModel",
        model_type="",
        library="diffusers",
        family="diffusion",
        task="denoising",
        read_config=_unet,
        model=UNet,
        keys=unet_table,
    ),
    Architecture(
        name="ControlNetModel",
        model_type="",
        library="diffusers",
        family="diffusion",
        task="image-control",
        read_config=_control,
        model=ControlNet,
        keys=control_table,
    ),
    Architecture(
        name="AutoencoderKL",
        model_type="",
        library="diffusers",
        family="diffusion",
        task="image-autoencoding",
        read_config=_autoencoder,
        model=Autoencoder,
        keys=autoencoder_table,
    ),
)
