"""CLIP: from the architectures' config.json to the model. Defaults are those of transformers."""

from dataclasses import replace

from models.architecture import Architecture
from models.clip.config import CLIPConfig, TextConfig, Tower, VisionConfig
from models.clip.model import CLIP
from models.clip.sharding import AXES
from models.clip.weights import key_table
from models.weights.fields import Fields, read_dtype

_OLD_END_TOKEN = 2  # of configs that name a wrong one: the end token is the highest of the text


def _tower(fields: Fields, *, dim: int, hidden_dim: int, num_heads: int) -> Tower:
    return Tower(
        dim=fields.positive("hidden_size", dim),
        hidden_dim=fields.positive("intermediate_size", hidden_dim),
        num_layers=fields.positive("num_hidden_layers", 12),
        num_heads=fields.positive("num_attention_heads", num_heads),
        act=fields.text("hidden_act", "quick_gelu"),
        norm_eps=fields.number("layer_norm_eps", 1e-5),
        initializer_range=fields.number("initializer_range", 0.02),
    )


def _text(fields: Fields) -> TextConfig:
    end = fields.integer("eos_token_id", 49407)
    return TextConfig(
        tower=_tower(fields, dim=512, hidden_dim=2048, num_heads=8),
        vocab_size=fields.positive("vocab_size", 49408),
        max_seq_len=fields.positive("max_position_embeddings", 77),
        end_token=None if end == _OLD_END_TOKEN else end,
    )


def _vision(fields: Fields) -> VisionConfig:
    return VisionConfig(
        tower=_tower(fields, dim=768, hidden_dim=3072, num_heads=12),
        image_size=fields.positive("image_size", 224),
        patch_size=fields.positive("patch_size", 32),
        num_channels=fields.positive("num_channels", 3),
    )


def _text_and_vision(fields: Fields) -> CLIPConfig:
    nothing = Fields({}, fields.where)
    return _with_dtype(
        fields,
        CLIPConfig(
            text=_text(fields.object("text_config", nothing)),
            vision=_vision(fields.object("vision_config", nothing)),
            projection_dim=fields.positive("projection_dim", 512),
            logit_scale=fields.number("logit_scale_init_value", 2.6592),
        ),
    )


def _only_text(fields: Fields) -> CLIPConfig:
    return _with_dtype(fields, CLIPConfig(text=_text(fields), vision=None))


def _only_vision(fields: Fields) -> CLIPConfig:
    return _with_dtype(fields, CLIPConfig(text=None, vision=_vision(fields)))


def _projected_text(fields: Fields) -> CLIPConfig:
    return replace(_only_text(fields), projection_dim=fields.positive("projection_dim", 512))


def _projected_vision(fields: Fields) -> CLIPConfig:
    return replace(_only_vision(fields), projection_dim=fields.positive("projection_dim", 512))


def _with_dtype(fields: Fields, config: CLIPConfig) -> CLIPConfig:
    dtype = read_dtype(fields)
    return replace(config, dtype=dtype, param_dtype=dtype)


ARCHITECTURES = tuple(
    Architecture(
        name=name,
        model_type=model_type,
        family="clip",
        task=task,
        read_config=read_config,
        model=CLIP,
        axes=AXES,
        keys=key_table,
    )
    for name, model_type, task, read_config in (
        ("CLIPModel", "clip", "zero-shot-image-classification", _text_and_vision),
        ("CLIPTextModel", "clip_text_model", "prompt-encoding", _only_text),
        ("CLIPTextModelWithProjection", "clip_text_model", "prompt-encoding", _projected_text),
        ("CLIPVisionModel", "clip_vision_model", "image-feature-extraction", _only_vision),
        (
            "CLIPVisionModelWithProjection",
            "clip_vision_model",
            "image-feature-extraction",
            _projected_vision,
        ),
    )
)
