"""All supported architectures, by their Hugging Face names."""

from collections.abc import Mapping

from models.architecture import Architecture
from models.ast import families as asts
from models.bart import families as barts
from models.clip import families as clips
from models.convnext import families as convnexts
from models.cvt import families as cvts
from models.decoder import families as decoders
from models.diffusion import families as diffusions
from models.diffusion import transformer_families as diffusion_transformers
from models.dpt import families as dpts
from models.encoder import families as encoders
from models.errors import ConfigError
from models.levit import families as levits
from models.mobilenet import families as mobilenets
from models.mobilevit import families as mobilevits
from models.modernbert import families as modernberts
from models.patchtst import families as patchtsts
from models.resnet import families as resnets
from models.swin import families as swins
from models.t5 import families as t5s
from models.vision_language import families as vision_languages
from models.vit import families as vits
from models.wav2vec2 import families as wav2vec2s
from models.weights.fields import Fields
from models.whisper import families as whispers
from models.yolos import families as yoloses

ARCHITECTURES: Mapping[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        *decoders.ARCHITECTURES,
        *encoders.ARCHITECTURES,
        *modernberts.ARCHITECTURES,
        *t5s.ARCHITECTURES,
        *barts.ARCHITECTURES,
        *vits.ARCHITECTURES,
        *resnets.ARCHITECTURES,
        *convnexts.ARCHITECTURES,
        *swins.ARCHITECTURES,
        *cvts.ARCHITECTURES,
        *dpts.ARCHITECTURES,
        *yoloses.ARCHITECTURES,
        *asts.ARCHITECTURES,
        *wav2vec2s.ARCHITECTURES,
        *levits.ARCHITECTURES,
        *mobilevits.ARCHITECTURES,
        *mobilenets.ARCHITECTURES,
        *patchtsts.ARCHITECTURES,
        *clips.ARCHITECTURES,
        *vision_languages.ARCHITECTURES,
        *whispers.ARCHITECTURES,
        *diffusions.ARCHITECTURES,
        *diffusion_transformers.ARCHITECTURES,
    )
}

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

    Raises ConfigError, which lists the supported ones, if it is not supported.
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
    raise ConfigError(
        f"{fields.where} asks for {asked}, which is not supported. Supported are "
        f"{', '.join(sorted(ARCHITECTURES))}."
    )
