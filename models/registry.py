"""All supported architectures, by their Hugging Face names."""

import functools
import importlib
from collections.abc import Iterator, Mapping

from models.architecture import Architecture
from models.errors import ArchitectureError
from models.weights.fields import Fields

MODULES = (
    "models.decoder.families",
    "models.encoder.families",
    "models.modernbert.families",
    "models.t5.families",
    "models.bart.families",
    "models.vit.families",
    "models.resnet.families",
    "models.convnext.families",
    "models.swin.families",
    "models.cvt.families",
    "models.dpt.families",
    "models.yolos.families",
    "models.ast.families",
    "models.wav2vec2.families",
    "models.levit.families",
    "models.mobilevit.families",
    "models.mobilenet.families",
    "models.patchtst.families",
    "models.clip.families",
    "models.vision_language.families",
    "models.whisper.families",
    "models.diffusion.families",
    "models.diffusion.transformer_families",
)
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


def architecture_of(fields: Fields) -> Architecture:
    """The architecture of a config.json: by the first of `architectures` or by `_class_name`, else
    by `model_type`.

    Raises ArchitectureError, which lists the supported ones, if it is not supported.
    """
    names = fields.texts("architectures", [])
    if "_class_name" in fields:  # of diffusers
        names = (fields.text("_class_name"),)
    if names and names[0] in ARCHITECTURES:
        return ARCHITECTURES[names[0]]
    by_type = [
        row for row in ARCHITECTURES.values() if row.model_type == fields.values.get("model_type")
    ]
    if not names and by_type:
        return by_type[0]
    asked = names[0] if names else f"model_type {fields.values.get('model_type')!r}"
    raise ArchitectureError(
        f"{fields.where} asks for {asked}, which is not supported. Supported are "
        f"{', '.join(sorted(ARCHITECTURES))}."
    )
