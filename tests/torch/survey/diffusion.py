"""Tiny denoisers, autoencoders and text encoders of diffusers' pipelines, with inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers

from tests.torch.survey.architectures import Model, inputs_of
from tests.torch.survey.tiny import shrink


def of_diffusers() -> dict[str, Callable[[], Model]]:
    """Denoisers and autoencoders of diffusers, and text encoders of pipelines, by class."""
    made = {name: lambda name=name: _of_diffusers(name) for name in DIFFUSERS}
    return made | {name: lambda name=name: _text_encoder(name) for name in TEXT_ENCODERS}


def _text_encoder(name: str) -> Model:
    model = getattr(transformers, name)
    config = shrink(model.config_class())
    torch.manual_seed(0)
    module = model(config).eval()
    return Model(module, inputs_of(module, config))


def _of_diffusers(name: str) -> Model:
    config, inputs = DIFFUSERS[name]
    torch.manual_seed(0)
    module = getattr(diffusers, name)(**config).eval()
    made = {
        key: torch.randn(value) if isinstance(value, tuple) else value
        for key, value in inputs.items()
    }
    if "return_dict" in inspect.signature(module.forward).parameters:
        made["return_dict"] = False
    return Model(module, made)


TEXT_ENCODERS = ("CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel")
"""Those of most pipelines."""

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
