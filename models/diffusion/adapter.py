"""IP-Adapter: an image as a part of the prompt.

Ye et al., "IP-Adapter: Text Compatible Image Prompt Adapter for Text-to-Image Diffusion Models",
2023.

CLIP makes a vector of the image, a projection a few tokens of it; the attention to the prompt has
further keys and values for these.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from models import pretrained
from models.diffusion.config import ImagePrompts, UNetConfig
from models.diffusion.parts import Pipeline
from models.diffusion.weights import adapter_table
from models.errors import ConfigError, WeightsError
from models.parameters import merge
from models.pretrained import Pretrained
from models.weights.load import load_parameters
from models.weights.safetensors import read_header

PROJECTION = "image_proj.proj.weight"
VISION = "CLIPVisionModelWithProjection"
"""The architecture whose vectors of images are what a projection reads."""


class ImagePrompt(NamedTuple):
    """Images that are a part of the prompts."""

    vectors: jax.Array  # [B, dim], as CLIP's projection gives them
    share: float = 1.0  # the factor of what the denoiser sees of them


def with_adapter(pipeline: Pipeline, file: Path, mesh: Mesh | None) -> Pipeline:
    """The pipeline with the IP-Adapter in a safetensors file.

    Raises ConfigError for a pipeline without U-Net, WeightsError for a file that does not suit it.
    """
    denoiser = pipeline.denoiser
    if not isinstance(denoiser.config, UNetConfig):
        raise ConfigError(
            f"{pipeline.kind.name} has no U-Net, and IP-Adapters are supported for U-Nets alone"
        )
    tensors = read_header(file)
    if PROJECTION not in tensors:
        raise WeightsError(
            f"{file} has no tensor {PROJECTION!r}: it is no IP-Adapter, or one of another kind "
            "(Plus, Full Face, FaceID), which is not supported"
        )
    rows, dim = tensors[PROJECTION].shape
    prompts = ImagePrompts(dim, rows // denoiser.config.context_dim)
    config = replace(denoiser.config, image_prompts=prompts)
    graph, whole = denoiser.architecture.abstract(config)
    described = pretrained.Described(denoiser.architecture, config, denoiser.fields)
    own = {name: leaf for name, leaf in whole.items() if name not in denoiser.parameters}
    added = load_parameters(
        tensors, adapter_table(config), own, pretrained.shardings(mesh, own, described.axis_names())
    )
    merged = {name: {**denoiser.parameters, **added}[name] for name in whole}
    return pipeline._replace(
        denoiser=denoiser._replace(config=config, graph=graph, parameters=merged)
    )


def vectors_of(encoder: Pretrained, pixels: jax.Array) -> jax.Array:
    """What CLIP makes of pixels [B, H, W, C]: [B, dim]."""
    return _vectors(encoder.graph, encoder.parameters, pixels)


@partial(jax.jit, static_argnums=0)
def _vectors(graph: Any, parameters: Any, pixels: jax.Array) -> jax.Array:
    vectors: jax.Array = merge(graph, parameters).features(pixels).pooled
    return vectors
