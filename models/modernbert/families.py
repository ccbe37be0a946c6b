"""From the config.json of ModernBERT to its model, and its architectures.

Defaults are those of transformers for fields that a file leaves out.
"""

from functools import partial

from models.architecture import Architecture
from models.layers.rotary import Rotary
from models.layers.text_heads import CLASSES, TextHeadConfig
from models.modernbert.config import ModernBertConfig
from models.modernbert.model import ModernBert
from models.modernbert.weights import key_table
from models.settings import default_settings, read_layers, read_model
from models.weights.fields import Fields, count_labels
from models.weights.rotary_fields import read_rotary

POOLINGS = {"cls": "first", "mean": "mean"}


def _read_config(task: str, fields: Fields) -> ModernBertConfig:
    rotary, local_rotary = _rotaries(fields)
    return read_model(
        ModernBertConfig,
        fields,
        head=_head(fields, task),
        rotary=rotary,
        local_rotary=local_rotary,
        local_layers=_local_layers(fields),
        reach=fields.positive("local_attention") // 2,
    )


def _head(fields: Fields, task: str) -> TextHeadConfig:
    if task == "fill-mask":
        fields.refuse(
            "tie_word_embeddings", True, why="the output layer must share the embedding table"
        )
    pooling = fields.text("classifier_pooling")
    if pooling not in POOLINGS:
        raise fields.fail("classifier_pooling", f"choose one of {', '.join(POOLINGS)}")
    return TextHeadConfig(
        task,
        num_labels=count_labels(fields),
        transform=task != "feature-extraction",
        act=fields.text("classifier_activation"),
        transform_bias=fields.flag("classifier_bias"),
        transform_norm=True,
        pooling=POOLINGS[pooling],
        output_bias=task != "fill-mask" or fields.flag("decoder_bias"),
    )


def _rotaries(fields: Fields) -> tuple[Rotary, Rotary]:
    """Of the layers that see everything, and of the local ones."""
    fields.refuse("rope_scaling", why="rope_parameters must be given per layer type")
    none = Fields({}, fields.where)
    both = fields.object("rope_parameters", none)
    return (
        read_rotary(
            fields,
            both.object("full_attention", none),
            theta=fields.positive_number("global_rope_theta"),
        ),
        read_rotary(
            fields,
            both.object("sliding_attention", none),
            theta=fields.positive_number("local_rope_theta"),
        ),
    )


def _local_layers(fields: Fields) -> tuple[int, ...]:
    layers = read_layers(fields)
    if "layer_types" not in fields:
        interval = fields.positive("global_attn_every_n_layers")
        return tuple(i for i in layers if i % interval)
    types = fields.list("layer_types")
    known = {"full_attention", "sliding_attention"}
    if len(types) < len(layers) or not set(types) <= known:
        raise fields.fail("layer_types", f"it must name one of {sorted(known)} per layer")
    return tuple(i for i in layers if types[i] == "sliding_attention")


_DEFAULTS = {
    **default_settings(ModernBertConfig),
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "decoder_bias": True,
    "classifier_pooling": "cls",
    "classifier_bias": False,
    "classifier_activation": "gelu",
}
ARCHITECTURES = tuple(
    Architecture(
        name=f"ModernBert{suffix}",
        model_type="modernbert",
        family="modernbert",
        task=task,
        read_config=partial(_read_config, task),
        defaults=_DEFAULTS,
        model=ModernBert,
        keys=key_table,
    )
    for task, suffix in CLASSES.items()
)
