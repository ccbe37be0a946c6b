"""Inputs of diffusers' denoisers and autoencoders on ``meta``, from their config.json alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from neuronjax.errors import ConfigurationError
from neuronjax.lazy import Lazy

if TYPE_CHECKING:
    import diffusers
    import torch
else:
    diffusers, torch = Lazy("diffusers"), Lazy("torch")

_SHRINKING, _FRAME_SHRINKING = 8, 4
"""Pixels of a side and frames that most autoencoders make one latent of."""
_PICTURE, _VIDEO = (1024, 1024), (480, 720)
"""Default heights and widths in pixels."""
_FRAMES = 49
_PICTURE_PACKING, _VIDEO_PACKING = 2, 4
"""Sides of the latents that make a token where the pipeline packs them, not the model."""
_CLIP_WORDS, _T5_WORDS = 77, 512
_IDS = 6
"""Numbers in `time_ids` of SDXL: sizes and places of a picture."""


def make_module(fields: Mapping[str, Any], dtype: torch.dtype) -> torch.nn.Module:
    """The model of diffusers that a config.json describes, on the current device.

    Its weights are of `dtype`, but for those that its class keeps in FP32.

    ConfigurationError: diffusers is not installed, or does not have the class.
    """
    name = fields["_class_name"]
    try:
        kind: Any = getattr(diffusers, name, None)
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"{name} is built by diffusers, which is not installed: pip install diffusers."
        ) from None
    if not hasattr(kind, "from_config") or not hasattr(kind, "forward"):
        raise ConfigurationError(
            f"diffusers {diffusers.__version__} has no model {name!r}; install a newer one, or "
            "estimate torch:FILE:FUNCTION."
        )
    module = torch.nn.Module.to(kind.from_config(dict(fields)), dtype)  # ModelMixin's warns
    kept = {*(kind._keep_in_fp32_modules or ())}
    for path, parameter in module.named_parameters():
        if not kept.isdisjoint(path.split(".")):
            parameter.data = parameter.data.float()
    return module.eval()


def make_inputs(
    module: torch.nn.Module, rows: int, words: int | None, dtype: torch.dtype
) -> dict[str, Any]:
    """Arguments of ``forward`` for a step of denoising, or for a picture through an autoencoder.

    Args:
      module: a model of diffusers; its config says how large pictures are and how wide texts.
      rows: pictures or videos.
      words: tokens of a text; default: 77 for U-Nets, which read CLIP's, else 512.
      dtype: that of latents and texts.

    ConfigurationError: ``forward`` needs an argument that is not known here.
    """
    taken = inspect.signature(module.forward).parameters
    size = _Size(module.config, type(module).__name__, {*taken}, rows, words, dtype)
    needed = {name for name, value in taken.items() if value.default is value.empty}
    given = needed | _OPTIONAL & taken.keys()
    known = {name: make(size) for name, make in _ARGUMENTS.items() if name in given}
    inputs = {name: value for name, value in known.items() if value is not None}
    if missing := sorted(needed - inputs.keys()):
        raise ConfigurationError(
            f"it is not known what diffusers' {size.kind} is given as {', '.join(missing)}: write "
            "a function that returns the module and its inputs, and estimate torch:FILE:FUNCTION."
        )
    return inputs


class _Size(NamedTuple):
    """What the shapes of inputs depend on."""

    config: Mapping[str, Any]
    kind: str
    taken: set[str]
    rows: int
    length: int | None
    dtype: torch.dtype

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(self.rows, *shape, dtype=dtype or self.dtype, device="meta")

    @property
    def words(self) -> int:
        fixed = self.config.get("num_embeddings") if self.kind == "PriorTransformer" else None
        usual = self.config.get("max_text_seq_length") or _T5_WORDS
        return fixed or self.length or (_CLIP_WORDS if "UNet" in self.kind else usual)

    @property
    def is_autoencoder(self) -> bool:
        return self.kind.startswith(("Autoencoder", "VQ", "AsymmetricAutoencoder"))

    @property
    def is_video(self) -> bool:
        patches = self.config.get("patch_size")
        return (
            "3D" in self.kind
            or (isinstance(patches, list | tuple) and len(patches) == 3)
            or any("tempor" in name or "temper" in name for name in self.config)
        )

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of what the model reads, latent or not."""
        if "sample_height" in self.config and not self.is_autoencoder:
            return self.config["sample_height"], self.config["sample_width"]
        if side := self.config.get("sample_size"):
            return (side, side) if isinstance(side, int) else tuple(side)
        height, width = _VIDEO if self.is_video else _PICTURE
        shrinking = 1 if self.is_autoencoder else _SHRINKING
        return height // shrinking, width // shrinking

    @property
    def frames(self) -> int:
        """Frames of a video, latent or not."""
        if self.is_autoencoder:
            return _FRAMES
        whole = self.config.get("sample_frames", _FRAMES)
        shrinking = self.config.get("temporal_compression_ratio") or _FRAME_SHRINKING
        return (whole - 1) // shrinking + 1

    @property
    def grid(self) -> tuple[int, int, int] | None:
        """Frames, rows and columns of the tokens of a model to which the pipeline brings tokens."""
        if self.taken.isdisjoint({"img_ids", "img_shapes", "video_coords"}):
            return None
        packing = _VIDEO_PACKING if self.is_video else _PICTURE_PACKING
        height, width = (side // packing for side in self.sides)
        return self.frames if self.is_video else 1, height, width

    def first(self, *names: str) -> int | None:
        """The first of these fields that is set; of fields with an entry for each block, one."""
        values = (self.config.get(name) for name in names)
        value = next((value for value in values if value is not None), None)
        return value if value is None or isinstance(value, int) else value[0]


def _latents(size: _Size) -> torch.Tensor:
    channels = size.config.get("in_channels", 3)
    if size.kind == "PriorTransformer":
        return size.empty(size.config["embedding_dim"])
    if size.grid:
        frames, height, width = size.grid
        return size.empty(frames * height * width, channels)
    if not size.is_video:
        return size.empty(channels, *size.sides)
    if size.kind.startswith("CogVideoX"):
        return size.empty(size.frames, channels, *size.sides)
    return size.empty(channels, size.frames, *size.sides)


def _text(size: _Size) -> torch.Tensor | None:
    width = size.first(
        "joint_attention_dim", "caption_channels", "text_dim", "text_embed_dim", "cap_feat_dim",
        "encoder_hid_dim", "cross_attention_dim", "embedding_dim",
    )  # fmt: skip
    return size.empty(size.words, width) if width else None


def _pooled_prompt(size: _Size) -> torch.Tensor | None:
    width = size.first("pooled_projection_dim")
    return size.empty(width) if width else None


def _mask(size: _Size) -> torch.Tensor | None:
    return size.empty(size.words, dtype=torch.bool)


def _places(size: _Size) -> torch.Tensor | None:
    assert size.grid
    return torch.empty(size.grid[1] * size.grid[2], _axes(size), device="meta")


def _axes(size: _Size) -> int:
    return len(size.config.get("axes_dims_rope") or (0, 0, 0))


def _conditions(size: _Size) -> dict[str, Any] | None:
    """What U-Nets of SDXL's kind and PixArt are told beside the text."""
    if size.config.get("addition_embed_type") == "text_time":
        width = size.config["projection_class_embeddings_input_dim"]
        pooled = width - _IDS * size.config["addition_time_embed_dim"]
        return {"text_embeds": size.empty(pooled), "time_ids": size.empty(_IDS)}
    if size.kind == "PixArtTransformer2DModel":
        is_told = size.config.get("use_additional_conditions")
        is_told = (
            size.config["sample_size"] == _PICTURE[0] // _SHRINKING if is_told is None else is_told
        )
        told = {"resolution": size.empty(2), "aspect_ratio": size.empty(1)}
        return told if is_told else dict.fromkeys(told)
    return None


def _class(size: _Size) -> torch.Tensor | None:
    has_classes = size.first("num_class_embeds", "num_embeds_ada_norm")
    is_read = has_classes and (size.kind.startswith("DiT") or "UNet" in size.kind)
    return size.empty(dtype=torch.int32) if is_read else None


def _side_of_grid(axis: int) -> Callable[[_Size], int | None]:
    return lambda size: size.grid[axis] if size.grid else None


_ARGUMENTS: Mapping[str, Callable[[_Size], Any]] = {
    "sample": _latents,
    "hidden_states": _latents,
    "timestep": lambda size: size.empty(dtype=torch.float32),
    "encoder_hidden_states": _text,
    "encoder_attention_mask": _mask,
    "encoder_hidden_states_mask": _mask,
    "pooled_projections": _pooled_prompt,
    "proj_embedding": lambda size: size.empty(size.config["embedding_dim"]),
    "guidance": lambda size: size.empty() if size.config.get("guidance_embeds") else None,
    "img_ids": _places,
    "txt_ids": lambda size: torch.empty(size.words, _axes(size), device="meta"),
    "img_shapes": lambda size: [[size.grid]] * size.rows,
    "class_labels": _class,
    "added_cond_kwargs": _conditions,
    "original_size": lambda size: size.empty(2),
    "target_size": lambda size: size.empty(2),
    "crop_coords": lambda size: size.empty(2),
    "num_frames": _side_of_grid(0),
    "height": _side_of_grid(1),
    "width": _side_of_grid(2),
    "return_dict": lambda size: False,
}
"""Argument of ``forward`` -> what makes it; None is left out."""
_OPTIONAL = _ARGUMENTS.keys() - {"encoder_attention_mask", "encoder_hidden_states_mask"}
"""Arguments that are given although ``forward`` has defaults for them."""
