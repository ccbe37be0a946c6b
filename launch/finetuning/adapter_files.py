"""Adapters in PEFT's own layout: `adapter_config.json` and `adapter_model.safetensors`.

Layout: huggingface.co/docs/peft, "PEFT checkpoint format". A layer whose tensor holds several of
our maps (queries, keys and values in one) has as many ranks beside each other, each of which
reaches its own part of the outputs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from launch.errors import ModelError
from launch.finetuning.lora import LISTED, LoRA, Adapted, Adapter, Layer, linear_layers, with_adapters
from models.errors import ConfigError
from models.parameters import Parameters
from models.pretrained import Described
from models.weights.fields import Fields, read_fields
from models.weights.plan import Group, stored_shapes
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

# Settings that change what an adapter means, and the values for which it is a plain LoRA.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_dora": (False,),
    "use_qalora": (False,),
    "lora_bias": (False,),
    "layers_to_transform": ([],),
    "layer_replication": ([],),
    "trainable_token_indices": ([], {}),
    "target_parameters": ([],),
    "alora_invocation_tokens": ([],),
}


def save_adapter(
    directory: Path, adapted: Adapted, parameters: Parameters, *, base: str | None = None
) -> None:
    """Writes the adapters and the layers that were trained whole; overwrites nothing.

    `base` is the name or directory of the model that they belong to. Raises WeightsError if a
    file exists already or cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = dict(_tensors(adapted, parameters))
    plan = [PlannedTensor(name, array.dtype, array.shape) for name, array in tensors.items()]
    write_file(directory / WEIGHTS_FILE, plan, tensors.values())
    text = json.dumps(_config(adapted, base), indent=2, sort_keys=True) + "\n"
    (directory / CONFIG_FILE).write_text(text)


def load_adapter(directory: Path, base: Described) -> tuple[Adapted, Parameters]:
    """The base with the adapters of a directory, and their parameters on the host.

    Raises ConfigError or WeightsError for files that cannot be used, ModelError if they belong to
    another model.
    """
    fields = read_fields(directory / CONFIG_FILE)
    for name, plain in _PLAIN.items():
        if fields.values.get(name):
            fields.refuse(name, *plain, why="only plain LoRA is supported")
    stored = read_header(directory / WEIGHTS_FILE)
    layers = {layer.name: layer for layer in linear_layers(base)}
    there = {key.removeprefix(PREFIX): tensor for key, tensor in stored.items()}
    named = {key.rpartition(".lora_A.")[0] for key in there if ".lora_A." in key}
    _refuse_strangers(directory, fields, base, sorted(named - layers.keys()))
    lora = _read_lora(fields)
    adapters = [
        _read_adapter(layer, there[f"{name}.lora_A.weight"], fields, lora)
        for name, layer in layers.items()
        if name in named
    ]
    heads = tuple(fields.list("modules_to_save", []))
    adapted = with_adapters(base, adapters, heads, lora)
    parameters, used = {}, set()
    shapes = {name: tuple(leaf.shape) for name, leaf in adapted.parameters().items()}
    for names, keys, split in _parts(adapted, shapes):
        used |= set(keys)
        missing = [key for key in keys if key not in there]
        _refuse_strangers(directory, fields, base, missing, "lacks")
        arrays = split([np.array(there[key].view()) for key in keys])
        for name, array in zip(names, arrays, strict=True):
            if array.shape != shapes[name]:
                raise ModelError(_wrong_shape(directory, fields, base, there[keys[0]], name))
            parameters[name] = array.astype(adapted.parameters()[name].dtype)
    _refuse_strangers(directory, fields, base, sorted(there.keys() - used))
    return adapted, parameters
