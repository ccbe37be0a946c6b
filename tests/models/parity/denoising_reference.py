"""The reference side of denoisers: each class of diffusers is called in its own way."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tests.models.parity.case import Case

ROWS = 4
TIMES = np.array([999.0, 500.5, 20.0, 0.0])
SIZES = np.array([[64.0, 96.0, 3.0, 5.0, 64.0, 32.0]] * ROWS)

Inputs = dict[str, np.ndarray]
Made = tuple[Inputs, dict[str, torch.Tensor], dict[str, Any] | None]


def denoising(model: Any, case: Case) -> Made:
    inputs, done = _CALLS[case.architecture](model, case, np.random.default_rng(0))
    done = done.movedim(1, -1)
    return inputs, {"prediction": done, "loss": done.square().mean()}, None


def image_control(model: Any, case: Case) -> Made:
    rng, config = np.random.default_rng(0), model.config
    inputs, theirs = _singles(
        latents=rng.normal(size=(ROWS, 8, 8, config.in_channels)),
        time=TIMES,
        context=rng.normal(size=(ROWS, case.length, config.cross_attention_dim)),
        image=rng.uniform(size=(ROWS, 16, 16, 3)),
        scale=np.full(ROWS, 0.7),
    )
    done = model(
        _first(inputs["latents"]),
        theirs["time"],
        theirs["context"],
        _first(inputs["image"]),
        conditioning_scale=0.7,
    )
    ends = [*done.down_block_res_samples, done.mid_block_res_sample]
    outputs = {f"end {i}": end.movedim(1, -1) for i, end in enumerate(ends)}
    return inputs, outputs | {"loss": sum(end.square().mean() for end in ends)}, None


def _first(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(array, -1, 1)))


def _singles(**inputs: np.ndarray) -> tuple[Inputs, dict[str, torch.Tensor]]:
    """Both sides of the inputs, FP32."""
    singles = {
        name: value if value.dtype == bool else value.astype(np.float32)
        for name, value in inputs.items()
    }
    return singles, {name: torch.from_numpy(value) for name, value in singles.items()}


def _unet(model: Any, case: Case, rng: np.random.Generator) -> tuple[Inputs, torch.Tensor]:
    config = model.config
    size, dim = config.sample_size, config.cross_attention_dim
    conditions = {}
    if config.addition_embed_type is not None:
        conditions = {"ids": SIZES}
    context = rng.normal(size=(ROWS, case.length, dim))
    latents = rng.normal(size=(ROWS, size, size, config.in_channels))
    if conditions:
        conditions["pooled"] = rng.normal(size=(ROWS, dim))
    inputs, theirs = _singles(latents=latents, time=TIMES, context=context, **conditions)
    done = model(
        _first(inputs["latents"]),
        theirs["time"],
        theirs["context"],
        added_cond_kwargs={
            name: theirs[ours]
            for name, ours in (("text_embeds", "pooled"), ("time_ids", "ids"))
            if ours in theirs
        },
    )
    return inputs, done.sample


def _pixart(model: Any, case: Case, rng: np.random.Generator) -> tuple[Inputs, torch.Tensor]:
    """Latents of another size than usual, and prompts of several lengths."""
    config = model.config
    conditions = {"ids": SIZES} if model.use_additional_conditions else {}
    inputs, theirs = _singles(
        latents=rng.normal(size=(ROWS, 8, 12, config.in_channels)),
        time=TIMES,
        context=rng.normal(size=(ROWS, case.length, config.caption_channels)),
        seen=np.arange(case.length) < np.array([[5], [12], [7], [9]]),
        **conditions,
    )
    size = theirs.get("ids")
    done = model(
        _first(inputs["latents"]),
        encoder_hidden_states=theirs["context"],
        timestep=theirs["time"],
        encoder_attention_mask=theirs["seen"].float(),
        added_cond_kwargs={
            "resolution": None if size is None else size[:, :2],
            "aspect_ratio": None if size is None else size[:, :1] / size[:, 1:2],
        },
    )
    return inputs, done.sample


def _flux(model: Any, case: Case, rng: np.random.Generator) -> tuple[Inputs, torch.Tensor]:
    config = model.config
    channels, height, width = config.in_channels // 4, 6, 8
    guidance = {"guidance": rng.uniform(1, 5, ROWS)} if config.guidance_embeds else {}
    inputs, theirs = _singles(
        latents=rng.normal(size=(ROWS, height, width, channels)),
        time=TIMES,
        context=rng.normal(size=(ROWS, case.length, config.joint_attention_dim)),
        pooled=rng.normal(size=(ROWS, config.pooled_projection_dim)),
        **guidance,
    )
    latents = _first(inputs["latents"]).view(ROWS, channels, height // 2, 2, width // 2, 2)
    rows, columns = torch.meshgrid(
        torch.arange(height // 2), torch.arange(width // 2), indexing="ij"
    )
    places = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).view(-1, 3)
    done = model(
        latents.permute(0, 2, 4, 1, 3, 5).reshape(ROWS, -1, config.in_channels),
        encoder_hidden_states=theirs["context"],
        pooled_projections=theirs["pooled"],
        timestep=theirs["time"] / 1000,
        img_ids=places.float(),
        txt_ids=torch.zeros(case.length, 3),
        guidance=theirs.get("guidance"),
    ).sample
    done = done.view(ROWS, height // 2, width // 2, channels, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return inputs, done.reshape(ROWS, channels, height, width)


_CALLS: Mapping[str, Callable[..., tuple[Inputs, torch.Tensor]]] = {
    "UNet2DConditionModel": _unet,
    "PixArtTransformer2DModel": _pixart,
    "FluxTransformer2DModel": _flux,
}
