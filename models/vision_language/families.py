"""Language models that see images, from their config.json. Defaults are those of transformers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.clip.config import Tower
from models.decoder.families import ARCHITECTURES as DECODERS
from models.settings import read_settings
from models.vision_language.config import VisionConfig, VisionLanguageConfig, pooled_window
from models.vision_language.model import VisionLanguage
from models.vision_language.weights import GEMMA3, IDEFICS3, Layout
from models.weights.fields import Fields, read_dtype

_SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "initializer_range": 0.02,
}
_IDEFICS3_VISION = {
    **_SIGLIP,
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "patch_size": 32,
}
_GEMMA3 = {
    "mm_tokens_per_image": 256,
    "image_token_index": 262_144,
    "tie_word_embeddings": True,
}
_IDEFICS3 = {"scale_factor": 2, "image_token_id": 128_257, "tie_word_embeddings": False}
TEXTS: Mapping[str, Architecture] = {
    row.model_type: row for row in reversed(DECODERS) if row.task == "text-generation"
}
"""Language models by the `model_type` of `text_config`."""


def _text_fields(fields: Fields, model_type: str, missing: Mapping[str, Any]) -> Fields:
    """The fields of the language model; whether its head is tied stands outside."""
    inner = fields.object("text_config", Fields({}, fields.where))
    tied = fields.flag("tie_word_embeddings")
    inner.refuse(
        "model_type", model_type, why=f"only {model_type} is supported as the language model"
    )
    values = {**missing, **inner.values, "tie_word_embeddings": tied}
    return Fields(values, inner.where)


def _read(
    fields: Fields,
    vision_defaults: Mapping[str, Any],
    model_type: str,
    missing: Mapping[str, Any],
) -> VisionLanguageConfig:
    text = _text_fields(fields, model_type, missing)
    nothing = Fields({}, fields.where)
    vision_fields = fields.object("vision_config", nothing).of_family(vision_defaults, {})
    given = {"tower": Tower(**read_settings(Tower, vision_fields))}
    vision = VisionConfig(**read_settings(VisionConfig, vision_fields, given=given))
    pooled = fields.knows("mm_tokens_per_image")
    dtype = read_dtype(fields if {"dtype", "torch_dtype"} & fields.values.keys() else text)
    return VisionLanguageConfig(
        text=TEXTS[model_type].config_of(text),
        vision=vision,
        image_token=fields.integer("image_token_index" if pooled else "image_token_id"),
        window=pooled_window(vision.side, fields.positive("mm_tokens_per_image"))
        if pooled
        else fields.positive("scale_factor"),
        pooled=pooled,
        dtype=dtype,
        param_dtype=dtype,
    )


def _architecture(
    name: str,
    model_type: str,
    defaults: Mapping[str, Any],
    vision: Mapping[str, Any],
    text: str,
    missing: Mapping[str, Any],
    layout: Layout,
) -> Architecture:
    return Architecture(
        name=name,
        model_type=model_type,
        family="vision_language",
        task="image-text-to-text",
        read_config=partial(_read, vision_defaults=vision, model_type=text, missing=missing),
        defaults=defaults,
        model=VisionLanguage,
        keys=partial(layout.key_table, TEXTS[text]),
    )


ARCHITECTURES = (
    _architecture(
        "Gemma3ForConditionalGeneration", "gemma3", _GEMMA3, _SIGLIP, "gemma3_text", {}, GEMMA3
    ),
    *(
        _architecture(
            f"{name}ForConditionalGeneration",
            name.lower(),
            _IDEFICS3,
            _IDEFICS3_VISION,
            "llama",
            {"rms_norm_eps": 1e-5},
            IDEFICS3,
        )
        for name in ("Idefics3", "SmolVLM")
    ),
)
