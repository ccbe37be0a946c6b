"""Adapters in PEFT's own layout: `adapter_config.json` and `adapter_model.safetensors`.

Layout: huggingface.co/docs/peft, "PEFT checkpoint format".
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from launch.errors import ModelError
from launch.finetuning.adapter_tensors import LORA_A, LORA_B, parts_of, rank_of
from launch.finetuning.lora import (
    LISTED,
    Adapted,
    Adapter,
    LoRA,
    ends_with,
    linear_layers,
    shapes_of,
    with_adapters,
)
from models.architecture import Architecture
from models.parameters import Parameters
from models.pretrained import Described
from models.published.table import PUBLISHED
from models.registry import ARCHITECTURES, text_fields
from models.weights.fields import CONFIG_FILE as BASE_CONFIG_FILE
from models.weights.fields import Fields, read_fields
from models.weights.safetensors import PlannedTensor, StoredTensor, read_header, write_file

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of every tensor

TASK_TYPES: Mapping[str, str] = {
    "text-generation": "CAUSAL_LM",
    "text2text-generation": "SEQ_2_SEQ_LM",
    "text-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
    "question-answering": "QUESTION_ANS",
    "feature-extraction": "FEATURE_EXTRACTION",
}

MODEL_TYPES = frozenset(architecture.model_type for architecture in ARCHITECTURES.values())

# Settings that change what an adapter computes, with the value for which it is a plain LoRA.
_PLAIN: Mapping[str, Any] = {
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_qalora": False,
    "lora_bias": False,
    "layers_to_transform": None,
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
    "alora_invocation_tokens": None,
}


def save_adapter(
    directory: Path, adapted: Adapted, parameters: Parameters, *, base: str | None = None
) -> None:
    """Writes the adapters and the layers that were trained whole; overwrites nothing.

    `base` is the name or directory of the model that they belong to. Raises WeightsError if a
    file exists already or cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray] = {}
    for part in parts_of(adapted):
        arrays = part.join([np.asarray(parameters[name]) for name in part.parameters])
        tensors |= {PREFIX + key: array for key, array in zip(part.keys, arrays, strict=True)}
    plan = [PlannedTensor(name, array.dtype, array.shape) for name, array in tensors.items()]
    write_file(directory / WEIGHTS_FILE, plan, tensors.values())
    text = json.dumps(_config_of(adapted, base), indent=2, sort_keys=True) + "\n"
    (directory / CONFIG_FILE).write_text(text)


def load_adapter(directory: Path, base: Described) -> tuple[Adapted, dict[str, np.ndarray]]:
    """The base with the adapters of a directory, and the parameters that the directory holds.

    Raises ConfigError or WeightsError for files that cannot be used, ModelError if they belong to
    another model or if there are none.
    """
    if not (directory / CONFIG_FILE).is_file():
        raise ModelError(
            f"{directory} holds no adapters: it has no {CONFIG_FILE}. Give a directory in PEFT's "
            "layout, such as the adapter-STEPS directory that launch.finetune writes."
        )
    fields = read_fields(directory / CONFIG_FILE)
    _check_plain(fields)
    _refuse(directory, fields, base, "is for", _other_architecture(fields, base.architecture))
    stored = {
        key.removeprefix(PREFIX): tensor
        for key, tensor in read_header(directory / WEIGHTS_FILE).items()
    }
    adapted = _structure(directory, fields, base, stored)
    shapes = adapted.parameters()
    parameters = {}
    for part in parts_of(adapted, _stored_ranks(stored)):
        _refuse(directory, fields, base, "lacks", [k for k in part.keys if k not in stored])
        tensors = [stored[key] for key in part.keys]
        wanted = part.stored_shapes
        wrong = [t.name for t, s in zip(tensors, wanted, strict=True) if t.shape != s]
        _refuse(directory, fields, base, "has other shapes for", wrong)
        arrays = part.split([np.array(tensor.view()) for tensor in tensors])
        for name, array in zip(part.parameters, arrays, strict=True):
            parameters[name] = np.ascontiguousarray(array.astype(shapes[name].dtype))
    return adapted, parameters


def _structure(
    directory: Path, fields: Fields, base: Described, stored: Mapping[str, StoredTensor]
) -> Adapted:
    """The base with adapters where the stored tensors say that they are."""
    layers = {layer.name: layer for layer in linear_layers(base)}
    named = {key.removesuffix(LORA_A) for key in stored if key.endswith(LORA_A)}
    _refuse(directory, fields, base, "has more", sorted(named - layers.keys()))
    unpaired = [name + LORA_B for name in sorted(named) if name + LORA_B not in stored]
    _refuse(directory, fields, base, "lacks", unpaired)
    lora = LoRA(
        rank=fields.positive("r", 8),
        alpha=fields.number("lora_alpha", 8.0),
        dropout=fields.number("lora_dropout", 0.0),
        targets=",".join(sorted(named)),
        rslora=fields.flag("use_rslora", False),
    )
    kernels = {name: tuple(x.shape) for name, x in shapes_of(base).items()}
    ranks = _stored_ranks(stored)
    adapters = [
        Adapter(
            layer,
            rank_of(layer, kernels, stored[name + LORA_A], stored[name + LORA_B]),
            lora.scale(ranks[name], _alpha(fields, lora, name)),
        )
        for name, layer in layers.items()
        if name in named
    ]
    adapted = with_adapters(base, adapters, tuple(fields.list("modules_to_save", [])), lora)
    known = {key for part in parts_of(adapted) for key in part.keys}
    _refuse(directory, fields, base, "has more", sorted(stored.keys() - known))
    return adapted


def _stored_ranks(stored: Mapping[str, StoredTensor]) -> dict[str, int]:
    return {k.removesuffix(LORA_A): t.shape[0] for k, t in stored.items() if k.endswith(LORA_A)}


def _alpha(fields: Fields, lora: LoRA, name: str) -> float:
    alphas = fields.object("alpha_pattern", Fields({}, fields.where)).values
    own = [float(alpha) for target, alpha in alphas.items() if ends_with(name, target)]
    return own[0] if own else lora.alpha


def _check_plain(fields: Fields) -> None:
    fields.refuse("peft_type", "LORA", why="only LoRA is supported")
    for name, plain in _PLAIN.items():
        if fields.values.get(name):
            fields.refuse(name, plain, why="only plain LoRA is supported")


def _other_architecture(fields: Fields, own: Architecture) -> list[str]:
    """The architecture that an adapter was made for, if that is known to be another one.

    Layers of two architectures may have the same names and shapes. PEFT records the class of the
    base only for models without a task type; otherwise the base itself says, where it is there.
    """
    mapping = fields.object("auto_mapping", Fields({}, fields.where))
    class_name = mapping.text("base_model_class", "")
    if class_name in ARCHITECTURES:
        return [] if class_name == own.name else [class_name]
    base = _fields_of_base(fields.text("base_model_name_or_path", ""))
    model_type = "" if base is None else text_fields(base).text("model_type", "")
    # The task may have put another head on the same base.
    is_other = model_type in MODEL_TYPES and model_type != own.model_type
    return [f"model_type {model_type}"] if is_other else []


def _fields_of_base(name: str) -> Fields | None:
    if name in PUBLISHED:
        return Fields(PUBLISHED[name], name)
    return read_fields(Path(name)) if (Path(name) / BASE_CONFIG_FILE).is_file() else None


def _refuse(
    directory: Path, fields: Fields, base: Described, what: str, names: Collection[str]
) -> None:
    """Raises ModelError if there are names that do not suit the model."""
    if not names:
        return
    listed = ", ".join(list(names)[:LISTED]) + (" …" if len(names) > LISTED else "")
    raise ModelError(
        f"the adapter in {directory}, made for "
        f"{fields.text('base_model_name_or_path', 'a model')}, does not fit this "
        f"{base.architecture.name}: it {what} {listed}. Give the adapter of this model, or the "
        "model of this adapter."
    )


def _config_of(adapted: Adapted, base: str | None) -> dict[str, Any]:
    lora, architecture = adapted.lora, adapted.base.architecture
    config: dict[str, Any] = {
        **_PLAIN,
        "peft_type": "LORA",
        "task_type": TASK_TYPES.get(architecture.task),
        "base_model_name_or_path": base,
        "auto_mapping": {"base_model_class": architecture.name, "parent_library": "transformers"},
        "inference_mode": True,
        "init_lora_weights": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "use_rslora": lora.rslora,
        "target_modules": _targets(adapted),
        "modules_to_save": list(adapted.heads) or None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    for adapter in adapted.adapters:
        rank = adapter.stored_rank
        alpha = adapter.scale / lora.scale(rank, 1.0)
        name = adapter.layer.name.rpartition(".")[2]
        if rank != lora.rank:
            config["rank_pattern"][name] = rank
        if not np.isclose(alpha, lora.alpha, rtol=1e-9):
            config["alpha_pattern"][name] = alpha
    return config


def _targets(adapted: Adapted) -> list[str]:
    """The last parts of the layers' names if no other layer shares them, else whole names."""
    names = {adapter.layer.name for adapter in adapted.adapters}
    short = sorted({name.rpartition(".")[2] for name in names})
    matched = {
        layer.name
        for layer in linear_layers(adapted.base)
        if any(ends_with(layer.name, target) for target in short)
    }
    return short if matched == names else sorted(names)
