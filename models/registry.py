"""All supported architectures, by their Hugging Face names."""

import functools
import importlib
from collections.abc import Iterator, Mapping, Sequence

from models.architecture import Architecture
from models.errors import ArchitectureError
from models.weights.fields import Fields

_FAMILIES = (
    "decoder", "encoder", "modernbert", "t5", "bart", "vit", "resnet", "convnext", "swin", "cvt",
    "dpt", "yolos", "ast", "wav2vec2", "levit", "mobilevit", "mobilenet", "efficientnet",
    "patchtst", "clip", "vision_language", "whisper", "diffusion",
)  # fmt: skip
MODULES = tuple(f"models.{family}.families" for family in _FAMILIES)
"""Each has `ARCHITECTURES`, its rows of the registry."""


class Registry(Mapping[str, Architecture]):
    """The architectures of modules by name. Modules are loaded in their order, until one has the
    name that is asked for: all of them would take longer than many programs run."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._modules = modules

    def __getitem__(self, name: str) -> Architecture:
        for module in self._modules:
            if name in (rows := _rows(module)):
                return rows[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        for module in self._modules:
            yield from _rows(module)

    def __len__(self) -> int:
        return sum(len(_rows(module)) for module in self._modules)


@functools.cache
def _rows(module: str) -> Mapping[str, Architecture]:
    rows: tuple[Architecture, ...] = importlib.import_module(module).ARCHITECTURES
    return {architecture.name: architecture for architecture in rows}


ARCHITECTURES: Mapping[str, Architecture] = Registry(MODULES)

LANGUAGE_MODELS: Mapping[str, str] = {"Llama4ForConditionalGeneration": "Llama4ForCausalLM"}
"""Architecture that sees images too -> that of its `text_config`, which alone is supported."""

_OWN_CLASSES: Mapping[tuple[str, str], str] = {
    ("internlm3", "LlamaForCausalLM"): "InternLM3ForCausalLM",
}
"""Model type and class that a config.json names -> the class with the defaults of that model type,
where transformers runs the model by the other one."""

_STAND_INS: Mapping[str, tuple[str, ...]] = {
    "ElectraForPreTraining": ("ElectraModel",),  # its head tells real tokens from others
    "ForPreTraining": ("ForMaskedLM", "Model"),
    "ForNextSentencePrediction": ("Model",),
    "ForMaskedImageModeling": ("Model",),
    "WithLMHeadModel": ("ForConditionalGeneration",),  # T5's old name
}
"""Ending of a class that is not supported -> endings of those that a checkpoint has weights for
besides, the best first."""

_OF_BOTH = ("dtype", "torch_dtype", "quantization_config")  # may stand beside `text_config`


def text_fields(fields: Fields) -> Fields:
    """The language model's config.json if the checkpoint is multimodal; otherwise the fields
    unchanged."""
    names = fields.texts("architectures", [])
    if not names or names[0] not in LANGUAGE_MODELS:
        return fields
    outside = {name: fields.values[name] for name in _OF_BOTH if name in fields}
    text = fields.object("text_config").values
    own = {name: value for name, value in text.items() if value is not None or name not in _OF_BOTH}
    return Fields({**outside, **own, "architectures": [LANGUAGE_MODELS[names[0]]]}, fields.where)


def named_class(fields: Fields) -> str | None:
    """The class that a config.json names: by the first of `architectures` or by `_class_name`."""
    if "_class_name" in fields:  # of diffusers
        return fields.text("_class_name")
    return next(iter(fields.texts("architectures", [])), None)


def sibling(architecture: Architecture, task: str) -> Architecture | None:
    """The architecture of the same family whose head is for a task, if there is one."""
    modules = [name for name in MODULES if name.startswith(f"models.{architecture.family}.")]
    rows = [row for module in modules for row in _rows(module).values()]
    alike = (architecture.model_type, task)
    return next((row for row in rows if (row.model_type, row.task) == alike), None)


def architecture_of(fields: Fields, tasks: Sequence[str] = ()) -> Architecture:
    """The architecture of a config.json: by the class that it names, else by `model_type`; with
    `tasks`, that of the same family for the first of them that the family has a head for.

    A class for training alone is read as the one that it holds besides its own head. Raises
    ArchitectureError, which lists the supported ones, if it is not supported.
    """
    named = _find_by_class(fields)
    for task in tasks:
        headed = named if task == named.task else sibling(named, task)
        if headed is not None:
            return headed
    return named


def _find_by_class(fields: Fields) -> Architecture:
    name = named_class(fields)
    if name is not None:
        name = _OWN_CLASSES.get((str(fields.values.get("model_type")), name), name)
        for known in (name, *_stand_ins(name)):
            if known in ARCHITECTURES:
                return ARCHITECTURES[known]
    by_type = [
        row for row in ARCHITECTURES.values() if row.model_type == fields.values.get("model_type")
    ]
    if name is None and by_type:
        return by_type[0]
    asked = name or f"model_type {fields.values.get('model_type')!r}"
    own = (
        ", and names code of its own (auto_map), which is never run" if "auto_map" in fields else ""
    )
    raise ArchitectureError(
        f"{fields.where} asks for {asked}, which is not supported{own}. Supported are "
        f"{', '.join(sorted(ARCHITECTURES))}."
    )


def _stand_ins(name: str) -> Iterator[str]:
    ending = next((ending for ending in _STAND_INS if name.endswith(ending)), None)
    if ending is not None:
        yield from (name.removesuffix(ending) + other for other in _STAND_INS[ending])
