"""Language models that see images, from their config.json. Defaults are those of transformers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.clip.config import Tower
from models.decoder.families import ARCHITECTURES as DECODERS
from models.published.defaults import DEFAULTS
from models.settings import read_settings
from models.vision_language.config import VisionConfig, VisionLanguageConfig, pooled_window
from models.vision_language.model import VisionLanguage
from models.vision_language.weights import GEMMA3, IDEFICS3, Layout
from models.weights.fields import Fields, read_dtype

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
    tower: str,
    model_type: str,
    missing: Mapping[str, Any],
) -> VisionLanguageConfig:
    text = _text_fields(fields, model_type, missing)
    nothing = Fields({}, fields.where)
    vision_fields = fields.object("vision_config", nothing).of_family(DEFAULTS[tower])
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
    tower: str,
    text: str,
    missing: Mapping[str, Any],
    layout: Layout,
) -> Architecture:
    return Architecture(
        name=name,
        model_type=model_type,
        family="vision_language",
        task="image-text-to-text",
        read_config=partial(_read, tower=tower, model_type=text, missing=missing),
        model=VisionLanguage,
        keys=partial(layout.key_table, TEXTS[text]),
    )


ARCHITECTURES = (
    _architecture(
        "Gemma3ForConditionalGeneration", "gemma3", "siglip_vision_model", "gemma3_text", {}, GEMMA3
    ),
    *(
        _architecture(
            f"{name}ForConditionalGeneration",
            name.lower(),
            "idefics3_vision",
            "llama",
            {"rms_norm_eps": 1e-5},
            IDEFICS3,
        )
        for name in ("Idefics3", "SmolVLM")
    ),
)
