"""LoRA for the models of a pipeline, added to their weights.

Hu et al., "LoRA", 2022. Files are those of diffusers (PEFT's names and its older ones) and of
kohya's trainer, for Stable Diffusion and, with the names of Stability's own code, SDXL.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from models.diffusion.parts import Pipeline
from models.errors import WeightsError
from models.pretrained import Pretrained
from models.weights.plan import LISTED, Group, stored_shapes, writing_plan
from models.weights.safetensors import StoredTensor, read_header, read_metadata

_PREFIXES: Mapping[str, str] = {
    "text_encoder_2.": "text_encoder_2",
    "lora_te2_": "text_encoder_2",
    "text_encoder.": "text_encoder",
    "lora_te1_": "text_encoder",
    "lora_te_": "text_encoder",
    "lora_unet_": "unet",
    "unet.": "unet",
    "transformer.": "transformer",
}
"""How a tensor's name begins -> folder of its model; the denoiser's may begin with neither."""

_NAME = re.compile(
    r"(?P<layer>.+?)(?:[._]lora|\.lora_linear_layer)?[._]"
    r"(?:lora_)?(?P<role>A|B|down|up|alpha)(?:\.\w+)??(?:\.weight)?"
)
_ROLES: Mapping[str, str] = {"A": "down", "B": "up"}

_OTHERS: Mapping[str, str] = {
    r"dora_scale|lora_magnitude_vector": "DoRA",
    r"hada_w": "LoHa",
    r"lokr_w": "LoKr",
    r"lora_mid": "LoCon with Tucker decomposition",
    r"lora_B\.bias": "a LoRA with biases",
}
"""What a name has of other methods -> their name."""

_METADATA = "lora_adapter_metadata"
_INSIDE: Mapping[str, str] = {
    "conv1": "in_layers_2",
    "time_emb_proj": "emb_layers_1",
    "conv2": "out_layers_3",
    "conv_shortcut": "skip_connection",
}
"""Parts of a residual block -> their names in Stability's code."""
_OUTSIDE: Mapping[str, str] = {
    "conv_in": "input_blocks_0_0",
    "conv_out": "out_2",
    "time_embedding_linear_1": "time_embed_0",
    "time_embedding_linear_2": "time_embed_2",
    "add_embedding_linear_1": "label_emb_0_0",
    "add_embedding_linear_2": "label_emb_0_2",
}


@dataclass
class _Pair:
    """The two matrices of a layer; the weight changes by alpha / rank · up · down."""

    name: str  # of the layer in the file
    tensors: dict[str, StoredTensor] = field(default_factory=dict)

    def change(self, file: Path, settings: Mapping[str, Any]) -> np.ndarray:
        """FP32 [out, …]. Raises WeightsError if a matrix is missing or they do not fit."""
        if not {"down", "up"} <= set(self.tensors):
            raise WeightsError(f"{file} has only one of the two LoRA matrices of {self.name}")
        down, up = (_read(self.tensors[role]) for role in ("down", "up"))
        if up.ndim < 2 or down.ndim < 2 or up.size != up.shape[0] * down.shape[0]:
            raise WeightsError(
                f"{file}: the LoRA matrices of {self.name} have the shapes {list(down.shape)} and "
                f"{list(up.shape)}, which do not fit together"
            )
        rank = len(down)
        scale = _scale(self.name, rank, settings)
        if "alpha" in self.tensors:
            scale = float(_read(self.tensors["alpha"]).reshape(-1)[0]) / rank
        product = up.reshape(len(up), rank) @ down.reshape(rank, -1)
        return (scale * product).reshape(len(up), *down.shape[1:])


def fuse(pipeline: Pipeline, file: Path, scale: float = 1.0) -> Pipeline:
    """The pipeline with `scale` times the LoRA of a safetensors file in its weights.

    Raises WeightsError if the file cannot be read, is of another method, or belongs to another
    model.
    """
    if not math.isfinite(scale):
        raise WeightsError(
            f"the scale of the LoRA {file} is {scale}, but it must be a finite number"
        )
    settings = _settings(file)
    models = dict(pipeline.folders())
    layers = {folder: _layers(folder, model) for folder, model in models.items()}
    changed = {folder: dict(model.parameters) for folder, model in models.items()}
    unknown = []
    for (folder, name), pair in _pairs(file, pipeline.kind.denoiser).items():
        group = layers.get(folder, {}).get(name)
        if group is None:
            unknown.append(f"{folder}: {pair.name}")
            continue
        parameters = changed[folder]
        change = scale * pair.change(file, settings.get(folder, {}))
        parameters.update(_add(group, parameters, change, f"{file}: the LoRA of {pair.name}"))
    if unknown:
        more = ", …" if len(unknown) > LISTED else ""
        raise WeightsError(
            f"{file} belongs to another model: {pipeline.kind.name} lacks {len(unknown)} of its "
            f"layers: {', '.join(unknown[:LISTED])}{more}"
        )
    return pipeline.with_models(
        {folder: model._replace(parameters=changed[folder]) for folder, model in models.items()}
    )


def _pairs(file: Path, denoiser: str) -> dict[tuple[str, str], _Pair]:
    """Pairs by folder and flat name of the layer; without a folder it is the denoiser's."""
    pairs: dict[tuple[str, str], _Pair] = {}
    for name, tensor in read_header(file).items():
        for pattern, method in _OTHERS.items():
            if re.search(pattern, name):
                raise WeightsError(
                    f"{file} holds {method} ({name}), but only plain LoRA is supported"
                )
        match = _NAME.fullmatch(name.replace(".processor.", "."))
        if match is None:
            raise WeightsError(f"{file} holds {name!r}, which is not part of a LoRA")
        folder, layer = _split(match["layer"], denoiser)
        role = _ROLES.get(match["role"], match["role"])
        pair = pairs.setdefault((folder, _flat(layer)), _Pair(layer))
        pair.tensors[role] = tensor
    if not pairs:
        raise WeightsError(f"{file} holds no LoRA")
    return pairs


def _split(name: str, denoiser: str) -> tuple[str, str]:
    """The folder of a layer's model, and its name there."""
    for prefix, folder in _PREFIXES.items():
        if name.startswith(prefix):
            return folder, name.removeprefix(prefix).removeprefix("base_model.model.")
    return denoiser, name.removeprefix("base_model.model.")


def _flat(layer: str) -> str:
    return layer.replace(".", "_").removeprefix("text_model_")


def _layers(folder: str, model: Pretrained) -> dict[str, Group[str]]:
    """The groups of a model's weights by the flat names that files have for them."""
    shapes = {name: tuple(value.shape) for name, value in model.parameters.items()}
    layers: dict[str, Group[str]] = {}
    for group in writing_plan(model.architecture.keys(model.config), shapes):
        [[key, *_], *_] = group.tensors
        if key.endswith(".weight") and len(stored_shapes(group, shapes)[0]) > 1:
            name = _flat(key.removesuffix(".weight"))
            layers |= dict.fromkeys(_names(name, model.config), group)
    return layers


def _names(name: str, config: Any) -> Iterator[str]:
    """The flat name of a layer, and others that it has elsewhere."""
    yield name
    yield re.sub(r"to_out_0$", "to_out", name)
    yield re.sub(r"self_attn_(q|k|v|out)_proj$", r"self_attn_to_\1", name)
    if name in _OUTSIDE:
        yield _OUTSIDE[name]
    match = re.fullmatch(r"(down_blocks|up_blocks|mid_block)_(?:(\d+)_)?(\D+?)_(\d+)_(.+)", name)
    if match is None:
        return
    way, level, part, place, rest = match.groups()
    inside = _INSIDE.get(rest, rest)
    if way == "mid_block":
        number = 1 if part == "attentions" else 2 * int(place)
        yield f"middle_block_{number}_{inside}"
        return
    number = int(level) * (config.layers + 1) + int(place)
    if way == "down_blocks" and part == "downsamplers":
        yield f"input_blocks_{(int(level) + 1) * (config.layers + 1)}_0_op"
    elif way == "down_blocks":
        yield f"input_blocks_{number + 1}_{int(part == 'attentions')}_{inside}"
    elif part == "upsamplers":
        attention = config.up_attention[::-1][int(level)]
        yield f"output_blocks_{number + config.layers}_{1 + attention}_{rest}"
    else:
        yield f"output_blocks_{number}_{int(part == 'attentions')}_{inside}"


def _add(
    group: Group[str], parameters: Mapping[str, jax.Array], change: np.ndarray, where: str
) -> Iterator[tuple[str, jax.Array]]:
    """The group's parameters with the change of its tensor."""
    shapes = {name: tuple(parameters[name].shape) for name in group.parameters}
    [stored] = stored_shapes(group, shapes)
    if change.size != math.prod(stored) or len(change) != stored[0]:
        raise WeightsError(
            f"{where} has the shape {list(change.shape)}, but the model's weight has "
            f"{list(stored)}. The LoRA belongs to another model."
        )
    parts = group.row.transform.split([change.reshape(stored)], list(shapes.values()))
    for name, part in zip(group.parameters, parts, strict=True):
        old = parameters[name]
        new = (np.asarray(old).astype(np.float32) + part).astype(old.dtype)
        yield name, jax.device_put(new, old.sharding)


def _read(tensor: StoredTensor) -> np.ndarray:
    return np.array(tensor.view()).astype(np.float32)


def _settings(file: Path) -> dict[str, dict[str, Any]]:
    """The settings by folder that PEFT wrote into the metadata of the LoRA's file."""
    text = read_metadata(file).get(_METADATA, "{}")
    try:
        values = json.loads(text)
        settings: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            folder, _, setting = name.partition(".")
            settings.setdefault(folder, {})[setting] = value
    except (ValueError, AttributeError, RecursionError) as error:
        raise WeightsError(f"the metadata of {file} cannot be used: {error!r}") from error
    return settings


def _scale(layer: str, rank: int, settings: Mapping[str, Any]) -> float:
    """alpha / rank as PEFT's settings say; 1 without them."""
    alpha = settings.get("lora_alpha", rank)
    for pattern, value in (settings.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", layer):
            alpha = value
    if not isinstance(alpha, int | float):
        raise WeightsError(f"the LoRA of {layer} has alpha={alpha!r}, but it must be a number")
    return float(alpha) / (math.sqrt(rank) if settings.get("use_rslora") else rank)
