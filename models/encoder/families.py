"""The families of encoders: from a family's config.json and key table to the common model.

Defaults are those of transformers for fields that a file leaves out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.architecture import Architecture
from models.encoder.config import EncoderConfig
from models.encoder.model import Encoder
from models.encoder.sharding import AXES
from models.encoder.weights import ALBERT, BERT, DISTILBERT, ELECTRA, MPNET, ROBERTA, Layout
from models.layers.text_heads import CLASSES, TextHeadConfig
from models.weights.fields import Fields, count_labels, read_dtype


@dataclass(frozen=True)
class Heads:
    """The activations of a family's heads; None where the head has no layer before its output."""

    fill_mask: str
    features: str | None = "tanh"
    classify: str = "tanh"
    choose: str = "tanh"

    def config(self, fields: Fields, task: str) -> TextHeadConfig:
        acts: Mapping[str, str | None] = {
            "feature-extraction": self.features,
            "fill-mask": self.fill_mask,
            "text-classification": self.classify,
            "multiple-choice": self.choose,
        }
        act = acts.get(task)
        return TextHeadConfig(
            task,
            num_labels=count_labels(fields),
            transform=act is not None,
            act=act or "tanh",
            transform_norm=task == "fill-mask",
        )


def _encoder(fields: Fields, task: str, heads: Heads, **changes: Any) -> EncoderConfig:
    """The fields that all families share; `changes` replaces some."""
    fields.refuse("is_decoder", False, why="only bidirectional attention is supported")
    fields.refuse(
        "position_embedding_type", "absolute", why="only absolute positions are supported"
    )
    if task == "fill-mask":
        fields.refuse("tie_word_embeddings", True, why="the output table must be the embedding's")
    dtype = read_dtype(fields)
    settings: dict[str, Any] = {
        "vocab_size": fields.positive("vocab_size"),
        "num_positions": fields.positive("max_position_embeddings"),
        "head": heads.config(fields, task),
        "initializer_range": fields.number("initializer_range", 0.02),
        "dtype": dtype,
        "param_dtype": dtype,
    }
    settings |= _dimensions(fields) if "dim" not in changes else {}
    settings |= changes
    settings.setdefault("embedding_dim", settings["dim"])
    return EncoderConfig(**settings)


def _dimensions(fields: Fields) -> dict[str, Any]:
    return {
        "num_layers": fields.positive("num_hidden_layers"),
        "dim": fields.positive("hidden_size"),
        "hidden_dim": fields.positive("intermediate_size"),
        "num_heads": fields.positive("num_attention_heads"),
        "type_vocab_size": fields.positive("type_vocab_size", 2),
        "norm_eps": fields.number("layer_norm_eps", 1e-12),
        "act": fields.text("hidden_act", "gelu"),
    }


def _bert(fields: Fields, task: str) -> EncoderConfig:
    return _encoder(fields, task, Heads(fields.text("hidden_act", "gelu")))


def _roberta(fields: Fields, task: str) -> EncoderConfig:
    return _encoder(fields, task, Heads("gelu"), position_pad=fields.integer("pad_token_id", 1))


def _mpnet(fields: Fields, task: str) -> EncoderConfig:
    fields.refuse("relative_attention_num_buckets", 32, why="only 32 buckets are supported")
    return _encoder(
        fields, task, Heads("gelu"), position_pad=1, relative_buckets=32, type_vocab_size=0
    )


def _distilbert(fields: Fields, task: str) -> EncoderConfig:
    act = fields.text("activation", "gelu")
    return _encoder(
        fields,
        task,
        Heads(act, features=None, classify="relu", choose="relu"),
        num_layers=fields.positive("n_layers"),
        dim=fields.positive("dim"),
        hidden_dim=fields.positive("hidden_dim"),
        num_heads=fields.positive("n_heads"),
        act=act,
    )


def _albert(fields: Fields, task: str) -> EncoderConfig:
    act = fields.text("hidden_act", "gelu_new")
    return _encoder(
        fields,
        task,
        Heads(act),
        act=act,
        embedding_dim=fields.positive("embedding_size", 128),
        embedding_projection=True,
        num_groups=fields.positive("num_hidden_groups", 1),
        blocks_per_group=fields.positive("inner_group_num", 1),
    )


def _electra(fields: Fields, task: str) -> EncoderConfig:
    if task == "multiple-choice":
        fields.refuse("summary_type", "first", why="only the first token's vector is supported")
        fields.refuse("summary_use_proj", True, why="only heads with a projection are supported")
    embedding_dim = fields.positive("embedding_size", 128)
    choose = fields.text("summary_activation", "gelu")
    return _encoder(
        fields,
        task,
        Heads("gelu", features=None, classify="gelu", choose=choose),
        embedding_dim=embedding_dim,
        embedding_projection=embedding_dim != fields.positive("hidden_size"),
    )


@dataclass(frozen=True)
class Family:
    """A family of encoders, in the names of transformers."""

    classes: str  # what its classes' names begin with
    model_type: str
    read_config: Callable[[Fields, str], EncoderConfig]
    layout: Layout

    def architecture(self, task: str) -> Architecture:
        """Its encoder with the head for a task."""

        def read_config(fields: Fields) -> EncoderConfig:
            return self.read_config(fields, task)

        return Architecture(
            name=self.classes + CLASSES[task],
            model_type=self.model_type,
            family="encoder",
            task=task,
            read_config=read_config,
            model=Encoder,
            axes=AXES,
            keys=self.layout.table,
        )


FAMILIES = (
    Family("Bert", "bert", _bert, BERT),
    Family("Roberta", "roberta", _roberta, ROBERTA),
    Family("Camembert", "camembert", _roberta, ROBERTA),
    Family("XLMRoberta", "xlm-roberta", _roberta, ROBERTA),
    Family("DistilBert", "distilbert", _distilbert, DISTILBERT),
    Family("Albert", "albert", _albert, ALBERT),
    Family("Electra", "electra", _electra, ELECTRA),
    Family("MPNet", "mpnet", _mpnet, MPNET),
)
ARCHITECTURES = tuple(family.architecture(task) for family in FAMILIES for task in CLASSES)
