"""From the config.json of ModernBERT to its model, and its architectures.

Defaults are those of transformers for fields that a file leaves out.
"""

from functools import partial

from models.architecture import Architecture
from models.layers.rotary import Rotary
from models.layers.text_heads import CLASSES, TextHeadConfig
from models.modernbert.config import ModernBertConfig
from models.modernbert.model import ModernBert
from models.modernbert.sharding import AXES
from models.modernbert.weights import key_table
from models.weights.fields import Fields, count_labels, read_dtype
from models.weights.rotary_fields import read_rotary

POOLINGS = {"cls": "first", "mean": "mean"}


def _read_config(task: str, fields: Fields) -> ModernBertConfig:
    dtype = read_dtype(fields)
    rotary, local_rotary = _rotaries(fields)
    return ModernBertConfig(
        vocab_size=fields.positive("vocab_size"),
        num_layers=fields.positive("num_hidden_layers"),
        dim=fields.positive("hidden_size"),
        hidden_dim=fields.positive("intermediate_size"),
        num_heads=fields.positive("num_attention_heads"),
        max_seq_len=fields.positive("max_position_embeddings"),
        head=_head(fields, task),
        rotary=rotary,
        local_rotary=local_rotary,
        local_layers=_local_layers(fields),
        reach=fields.positive("local_attention", 128) // 2,
        norm_eps=fields.number("norm_eps", 1e-5),
        norm_bias=fields.flag("norm_bias", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        act=fields.text("hidden_activation", "gelu"),
        initializer_range=fields.number("initializer_range", 0.02),
        dtype=dtype,
        param_dtype=dtype,
    )


def _head(fields: Fields, task: str) -> TextHeadConfig:
    if task == "fill-mask":
        fields.refuse("tie_word_embeddings", True, why="the output table must be the embedding's")
    pooling = fields.text("classifier_pooling", "cls")
    if pooling not in POOLINGS:
        raise fields.fail("classifier_pooling", f"supported are {', '.join(POOLINGS)}")
    return TextHeadConfig(
        task,
        num_labels=count_labels(fields),
        transform=task != "feature-extraction",
        act=fields.text("classifier_activation", "gelu"),
        transform_bias=fields.flag("classifier_bias", False),
        transform_norm=True,
        pooling=POOLINGS[pooling],
        output_bias=task != "fill-mask" or fields.flag("decoder_bias", True),
    )


def _rotaries(fields: Fields) -> tuple[Rotary, Rotary]:
    """Of the layers that see everything, and of the local ones."""
    fields.refuse("rope_scaling", why="only rope_parameters by kind of layer are supported")
    none = Fields({}, fields.where)
    both = fields.object("rope_parameters", none)
    whole, local = (both.object(name, none) for name in ("full_attention", "sliding_attention"))
    return (
        read_rotary(fields, theta=fields.number("global_rope_theta", 160_000.0), parameters=whole),
        read_rotary(fields, theta=fields.number("local_rope_theta", 10_000.0), parameters=local),
    )


def _local_layers(fields: Fields) -> tuple[int, ...]:
    layers = range(fields.positive("num_hidden_layers"))
    if "layer_types" not in fields:
        interval = fields.positive("global_attn_every_n_layers", 3)
        return tuple(i for i in layers if i % interval)
    types = fields.list("layer_types")
    known = {"full_attention", "sliding_attention"}
    if len(types) < len(layers) or not set(types) <= known:
        raise fields.fail("layer_types", f"one of {sorted(known)} per layer is needed")
    return tuple(i for i in layers if types[i] == "sliding_attention")


ARCHITECTURES = tuple(
    Architecture(
        name=f"ModernBert{suffix}",
        model_type="modernbert",
        family="modernbert",
        task=task,
        read_config=partial(_read_config, task),
        model=ModernBert,
        axes=AXES,
        keys=key_table,
    )
    for task, suffix in CLASSES.items()
)
