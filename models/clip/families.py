"""CLIP: from the architectures' config.json and tensors to the model."""

from dataclasses import replace

from models.architecture import Architecture
from models.clip.config import CLIPConfig, TextConfig, Tower, VisionConfig
from models.clip.model import CLIP
from models.published.defaults import DEFAULTS
from models.settings import read_settings
from models.weights.fields import Fields, read_dtype
from models.weights.rows import BlockNames, block_rows, norm_rows
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_2D, KERNEL

_NAMES = BlockNames(
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out_proj",
    "mlp.fc1",
    "mlp.fc2",
    ("layer_norm1", "layer_norm2"),
)
BLOCKS = tuple(block_rows("encoder.layers.{i}", "blocks.{i}", _NAMES))
_TEXT = (
    row("embeddings.token_embedding.weight", "embedding.table"),
    row("embeddings.position_embedding.weight", "positions"),
    *BLOCKS,
    *norm_rows("final_layer_norm", "norm"),
)
_VISION = (
    row("embeddings.class_embedding", "class_token"),
    row("embeddings.patch_embedding.weight", "patches.kernel", CONV_2D),
    row("embeddings.position_embedding.weight", "positions"),
    *norm_rows("pre_layrnorm", "in_norm"),  # misspelt in the files
    *BLOCKS,
    *norm_rows("post_layernorm", "norm"),
)
_JOINT = (
    row("text_projection.weight", "text_projection.kernel", KERNEL),
    row("visual_projection.weight", "vision_projection.kernel", KERNEL),
    row("logit_scale", "logit_scale"),
)
_BACKBONE = r"^(embeddings|encoder|final_layer_norm|pre_layrnorm|post_layernorm)\."


def key_table(config: CLIPConfig) -> KeyTable:
    """The table for one config: a tower's keys have a prefix unless there is nothing else."""
    alone = config.projection_dim is None
    towers = (
        ("text_model", "text.", _TEXT, config.text),
        ("vision_model", "vision.", _VISION, config.vision),
    )
    rows: list[Row] = []
    renames: tuple[tuple[str, str], ...] = ()
    for theirs, ours, table, tower in towers:
        if tower is None:
            continue
        rows += prefixed("" if alone else f"{theirs}.", table, ours)
        if alone:
            renames = ((rf"^{theirs}\.", ""),)
        elif config.text is None or config.vision is None:
            renames = ((_BACKBONE, rf"{theirs}.\1."),)
    return KeyTable((*rows, *_JOINT), renames, ignored=(r".*\.position_ids",))


_OLD_END_TOKEN = 2  # of configs that name a wrong one: the end token is the highest of the text


def _text(fields: Fields) -> TextConfig:
    end = fields.integer("eos_token_id")
    given = {
        "tower": Tower(**read_settings(Tower, fields)),
        "end_token": None if end == _OLD_END_TOKEN else end,
    }
    return TextConfig(**read_settings(TextConfig, fields, given=given))


def _vision(fields: Fields) -> VisionConfig:
    given = {"tower": Tower(**read_settings(Tower, fields))}
    return VisionConfig(**read_settings(VisionConfig, fields, given=given))


def _text_and_vision(fields: Fields) -> CLIPConfig:
    nothing = Fields({}, fields.where)
    given = {
        "text": _text(fields.object("text_config", nothing).of_family(DEFAULTS["clip_text_model"])),
        "vision": _vision(
            fields.object("vision_config", nothing).of_family(DEFAULTS["clip_vision_model"])
        ),
        "projection_dim": fields.positive("projection_dim"),
    }
    return _with_dtype(fields, CLIPConfig(**read_settings(CLIPConfig, fields, given=given)))


def _only_text(fields: Fields) -> CLIPConfig:
    return _with_dtype(fields, CLIPConfig(text=_text(fields), vision=None))


def _only_vision(fields: Fields) -> CLIPConfig:
    return _with_dtype(fields, CLIPConfig(text=None, vision=_vision(fields)))


def _projected_text(fields: Fields) -> CLIPConfig:
    return replace(_only_text(fields), projection_dim=fields.positive("projection_dim"))


def _projected_vision(fields: Fields) -> CLIPConfig:
    return replace(_only_vision(fields), projection_dim=fields.positive("projection_dim"))


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
