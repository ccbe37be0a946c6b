"""Language models that see images, from their config.json and their tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.clip.config import Tower
from models.clip.families import BLOCKS
from models.decoder.families import ARCHITECTURES as DECODERS
from models.published.defaults import DEFAULTS
from models.settings import read_settings
from models.vision_language.config import VisionConfig, VisionLanguageConfig, pooled_window
from models.vision_language.model import VisionLanguage
from models.weights.fields import Fields, read_dtype
from models.weights.rows import dense_rows, norm_rows
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_2D, KERNEL, SAME, Transform

_TOWER: tuple[Row, ...] = (
    *dense_rows("embeddings.patch_embedding", "patches", CONV_2D),
    row("embeddings.position_embedding.weight", "positions"),
    *BLOCKS,
    *norm_rows("post_layernorm", "norm"),
)


@dataclass(frozen=True)
class Layout:
    """The keys of the model's parts in a checkpoint."""

    tower: str
    projection: str
    transform: Transform
    text_key: Callable[[str], str]  # of a key of the language model alone
    norm: str | None = None
    renames: tuple[tuple[str, str], ...] = ()

    def key_table(self, text: Architecture, config: VisionLanguageConfig) -> KeyTable:
        """The table for one config, whose text is of that architecture."""
        inner = text.keys(config.decoder)
        rows = (
            row(
                [self.text_key(key.text) for key in old.keys],
                [f"text.{parameter.text}" for parameter in old.parameters],
                old.transform,
            )
            for old in inner.rows
        )
        connector = [row(self.projection, "connector.projection.kernel", self.transform)]
        if self.norm is not None:
            connector.append(row(self.norm, "connector.norm.scale"))
        return KeyTable(
            (*rows, *prefixed(f"{self.tower}.", _TOWER, "vision."), *connector),
            self.renames,
            # The pooling head of a tower has no part in what is made of it.
            (
                *(self.text_key(pattern) for pattern in inner.ignored),
                r".*\.head\..*",
                r".*\.position_ids",
            ),
            tuple((self.text_key(key), self.text_key(other)) for key, other in inner.substitutes),
        )


GEMMA3 = Layout(
    tower="vision_tower",
    projection="multi_modal_projector.mm_input_projection_weight",
    transform=SAME,
    norm="multi_modal_projector.mm_soft_emb_norm.weight",
    text_key=lambda key: key if key.startswith(".*") else f"language_model.{key}",
    renames=(
        (r"^model\.(vision_tower|multi_modal_projector)\.", r"\1."),
        (r"^vision_tower\.vision_model\.", "vision_tower."),
        (r"^model\.language_model\.", "language_model.model."),
        (r"^lm_head\.", "language_model.lm_head."),
    ),
)
IDEFICS3 = Layout(
    tower="model.vision_model",
    projection="model.connector.modality_projection.proj.weight",
    transform=KERNEL,
    text_key=lambda key: (
        f"model.text_model.{key.removeprefix('model.')}" if key.startswith("model.") else key
    ),
)


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
