"""From the config.json of ModernBERT to its model, and its architectures.

Defaults are those of transformers for fields that a file leaves out.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.layers.text_heads import CLASSES, TextHeadConfig
from models.modernbert.config import ModernBertConfig
from models.modernbert.model import ModernBert
from models.modernbert.weights import key_table
from models.settings import layers_of_kind
from models.weights.fields import Fields, count_labels
from models.weights.rotary_fields import read_rotaries
from models.weights.tied import refuse_own_head

POOLINGS = {"cls": "first", "mean": "mean"}


def _read(task: str, fields: Fields) -> Mapping[str, Any]:
    fields.refuse("rope_scaling", why="rope_parameters must be given per layer type")
    interval = fields.positive("global_attn_every_n_layers")
    rotary, local_rotary = read_rotaries(
        fields,
        theta=fields.positive_number("global_rope_theta"),
        local=fields.positive_number("local_rope_theta"),
    )
    return {
        "head": _head(fields, task),
        "rotary": rotary,
        "local_rotary": local_rotary,
        "local_layers": layers_of_kind(fields, lambda layer: layer % interval != 0),
        "reach": fields.positive("local_attention") // 2,
    }


def _head(fields: Fields, task: str) -> TextHeadConfig:
    if task == "fill-mask":
        refuse_own_head(fields)
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


ARCHITECTURES = tuple(
    Architecture.of(
        f"ModernBert{suffix}",
        ModernBertConfig(),
        ModernBert,
        key_table,
        task=task,
        read=partial(_read, task),
    )
    for task, suffix in CLASSES.items()
)
