"""The families of encoders: from a family's config.json and key table to the common model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from models.architecture import Architecture
from models.encoder.bottleneck import Bottleneck
from models.encoder.config import EncoderConfig
from models.encoder.disentangled import Disentangled
from models.encoder.model import Encoder
from models.encoder.ngrams import NGrams
from models.encoder.span import SpanConvolution
from models.encoder.weights import LAYOUTS
from models.layers.rotary import Rotary
from models.layers.text_heads import CLASSES, TextHeadConfig
from models.settings import read_settings
from models.weights.fields import Fields, count_labels, read_dtype
from models.weights.tied import refuse_own_head


@dataclass(frozen=True)
class Heads:
    """The activations of a family's heads; None where the head has no layer before its output."""

    fill_mask: str | None
    features: str | None = "tanh"
    classify: str | None = "tanh"
    choose: str | None = "tanh"
    choose_pooling: str = "first"
    choose_dim: int | None = None  # width of the layer before the output
    fill_dim: int | None = None  # width of the layer before the vocabulary

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
            transform_dim={"multiple-choice": self.choose_dim, "fill-mask": self.fill_dim}.get(
                task
            ),
            transform_norm=task == "fill-mask" and act is not None,
            pooling=self.choose_pooling if task == "multiple-choice" else "first",
        )


def _encoder(fields: Fields, task: str, heads: Heads, **changes: Any) -> EncoderConfig:
    """The fields that all families share; `changes` replaces some."""
    if "rotary" not in changes:
        fields.refuse(
            "position_embedding_type",
            "absolute",
            why="only absolute position embeddings are supported",
        )
    if task == "fill-mask":
        refuse_own_head(fields)
    dtype = read_dtype(fields)
    given = {"head": heads.config(fields, task), "dtype": dtype, "param_dtype": dtype, **changes}
    if not fields.knows("embedding_size"):
        given["embedding_dim"] = fields.positive("hidden_size")
    return EncoderConfig(**read_settings(EncoderConfig, fields, given=given))


def _check_choices(fields: Fields, task: str, token: str, *, projects: bool) -> None:
    """Refuses heads for multiple choice that look at another token, or project otherwise."""
    if task == "multiple-choice":
        way = "with" if projects else "without"
        why = f"only the {token} token's hidden state can be used"
        fields.refuse("summary_type", token, why=why)
        why = f"only heads {way} a projection are supported"
        fields.refuse("summary_use_proj", projects, why=why)


def _bert(fields: Fields, task: str) -> EncoderConfig:
    return _encoder(fields, task, Heads(fields.text("hidden_act")))


def _roberta(fields: Fields, task: str) -> EncoderConfig:
    return _encoder(fields, task, Heads("gelu"), position_pad=fields.integer("pad_token_id"))


def _mpnet(fields: Fields, task: str) -> EncoderConfig:
    return _encoder(fields, task, Heads("gelu"), position_pad=1, relative_buckets=32)


def _distilbert(fields: Fields, task: str) -> EncoderConfig:
    act = fields.text("hidden_act")
    return _encoder(fields, task, Heads(act, features=None, classify="relu", choose="relu"))


def _albert(fields: Fields, task: str) -> EncoderConfig:
    return _encoder(fields, task, Heads(fields.text("hidden_act")), embedding_projection=True)


def _electra(fields: Fields, task: str) -> EncoderConfig:
    _check_choices(fields, task, "first", projects=True)
    heads = Heads("gelu", features=None, classify="gelu", choose=fields.text("summary_activation"))
    is_projected = fields.positive("embedding_size") != fields.positive("hidden_size")
    return _encoder(fields, task, heads, embedding_projection=is_projected)


def _roformer(fields: Fields, task: str) -> EncoderConfig:
    _check_choices(fields, task, "last", projects=False)
    act, dim = fields.text("hidden_act"), fields.positive("hidden_size")
    heads = Heads(act, features=None, classify=act, choose=None, choose_pooling="end")
    width = fields.positive("embedding_size", dim)
    return _encoder(
        fields,
        task,
        heads,
        rotary=Rotary(),
        embedding_dim=width,
        embedding_projection=width != dim,
    )


def _deberta_v2(fields: Fields, task: str) -> EncoderConfig:
    buckets = fields.integer("position_buckets", -1)
    norms = fields.text("norm_rel_ebd", "none").lower().split("|")
    return _disentangled(
        fields,
        task,
        buckets=buckets if buckets > 0 else None,
        shared=fields.flag("share_att_key", False),
        normed="layer_norm" in (name.strip() for name in norms),
        ngrams=_ngrams(fields),
    )


def _ngrams(fields: Fields) -> NGrams | None:
    window = fields.integer("conv_kernel_size", 0)
    if window < 1:
        return None
    fields.refuse("conv_groups", 1, why="a convolution of groups is not supported")
    return NGrams(window, fields.text("conv_act", "tanh"))


def _deberta(fields: Fields, task: str) -> EncoderConfig:
    return _disentangled(fields, task, biases=False)


def _disentangled(
    fields: Fields, task: str, ngrams: NGrams | None = None, **settings: Any
) -> EncoderConfig:
    dim = fields.positive("hidden_size")
    for name in ("embedding_size", "pooler_hidden_size"):
        fields.refuse(name, dim, why=f"only the hidden size, {dim}, is supported")
    if task == "fill-mask":
        fields.refuse("legacy", True, why="only the legacy head is supported")
    scores, is_relative = _scores(fields), fields.flag("relative_attention")
    if scores and not is_relative:
        raise fields.fail("relative_attention", "it must be true when pos_att_type is given")
    farthest = fields.integer("max_relative_positions")
    if farthest < 1:
        farthest = fields.positive("max_position_embeddings")
    pooled = fields.text("pooler_hidden_act")
    return _encoder(
        fields,
        task,
        Heads(fields.text("hidden_act"), features=None, classify=pooled, choose=pooled),
        absolute_positions=fields.flag("position_biased_input"),
        disentangled=Disentangled(scores, farthest, **settings) if is_relative else None,
        ngrams=ngrams,
    )


def _scores(fields: Fields) -> frozenset[str]:
    """`pos_att_type`: a list, or a text with bars."""
    kinds = fields.values.get("pos_att_type")
    if kinds is None:
        return frozenset()
    names = kinds.lower().split("|") if isinstance(kinds, str) else fields.list("pos_att_type")
    return frozenset(str(name).strip() for name in names)


def _xlm(fields: Fields, task: str) -> EncoderConfig:
    count = fields.positive("n_langs")
    if task in ("multiple-choice", "text-classification"):
        fields.refuse(
            "summary_type", "first", why="only the first token's hidden state can be used"
        )
        for name in ("summary_use_proj", "summary_proj_to_labels"):
            fields.refuse(name, True, why="only heads that project to the labels are supported")
        fields.refuse("summary_activation", None, "", why="only linear heads are supported")
    return _encoder(
        fields,
        task,
        Heads(None, features=None, classify=None, choose="linear", choose_dim=count_labels(fields)),
        hidden_dim=4 * fields.positive("hidden_size"),
        act="gelu" if fields.flag("gelu_activation") else "relu",
        languages=count if count > 1 and fields.flag("use_lang_emb") else 0,
        pre_norm=fields.flag("pre_norm", False),
    )


def _esm(fields: Fields, task: str) -> EncoderConfig:
    kind = fields.text("position_embedding_type", "absolute")
    if kind not in ("absolute", "rotary"):
        raise fields.fail("position_embedding_type", "choose absolute or rotary")
    is_rotary = kind == "rotary"
    drops = fields.flag("token_dropout", False)
    return _encoder(
        fields,
        task,
        Heads("gelu"),
        rotary=Rotary(theta=fields.positive_number("rope_theta")) if is_rotary else None,
        position_pad=None if is_rotary else fields.integer("pad_token_id"),
        pre_norm=True,
        last_norm=True,
        embedding_norm=fields.flag("emb_layer_norm_before", False),
        dropped_token=fields.integer("mask_token_id") if drops else None,
    )


def _mobilebert(fields: Fields, task: str) -> EncoderConfig:
    return _encoder(
        fields,
        task,
        Heads(fields.text("hidden_act"), fill_dim=fields.positive("hidden_size")),
        embedding_projection=True,
        trigrams=True,
        bottleneck=Bottleneck(
            fields.positive("intra_bottleneck_size"), fields.positive("num_feedforward_networks")
        ),
    )


def _convbert(fields: Fields, task: str) -> EncoderConfig:
    _check_choices(fields, task, "last", projects=False)
    act = fields.text("hidden_act")
    heads = fields.positive("num_attention_heads") // fields.positive("head_ratio")
    return _encoder(
        fields,
        task,
        Heads("gelu", features=None, classify=act, choose=None, choose_pooling="end"),
        embedding_projection=fields.positive("embedding_size") != fields.positive("hidden_size"),
        span=SpanConvolution(max(heads, 1), fields.positive("conv_kernel_size")),
    )


def _refine(config: EncoderConfig, tensors: Mapping[str, Any]) -> EncoderConfig:
    """Encoders were saved without a pooler too, and with a head for contacts or without: no field
    says so."""
    config = replace(config, contacts=any("contact_head." in name for name in tensors))
    head = config.head
    if head.task != "feature-extraction" or any("pooler." in name for name in tensors):
        return config
    return replace(config, head=replace(head, transform=False))


@dataclass(frozen=True)
class Family:
    """A family of encoders, in the names of transformers."""

    classes: str  # what its classes' names begin with
    model_type: str
    read_config: Callable[[Fields, str], EncoderConfig]
    layout: str | None = None  # in keys.json, if not that of the model type
    tasks: Sequence[str] = tuple(CLASSES)
    class_names: Mapping[str, str] = field(default_factory=dict)  # by task, of unusual ones

    def architecture(self, task: str) -> Architecture:
        """The architecture of the family's encoder with the head for a task."""

        def read_config(fields: Fields) -> EncoderConfig:
            return self.read_config(fields, task)

        return Architecture(
            name=self.classes + {**CLASSES, **self.class_names}[task],
            model_type=self.model_type,
            family="encoder",
            task=task,
            read_config=read_config,
            model=Encoder,
            keys=LAYOUTS[self.layout or self.model_type].table,
            refine=_refine,
        )


_DEBERTA_TASKS = tuple(task for task in CLASSES if task != "multiple-choice")
_ESM_TASKS = ("feature-extraction", "fill-mask", "text-classification", "token-classification")
_XLM_CLASSES = {
    "fill-mask": "WithLMHeadModel",
    "question-answering": "ForQuestionAnsweringSimple",
}

FAMILIES = (
    Family("Bert", "bert", _bert),
    Family("Roberta", "roberta", _roberta),
    Family("Camembert", "camembert", _roberta, "roberta"),
    Family("XLMRoberta", "xlm-roberta", _roberta, "roberta"),
    Family("DistilBert", "distilbert", _distilbert),
    Family("Albert", "albert", _albert),
    Family("Electra", "electra", _electra),
    Family("MPNet", "mpnet", _mpnet),
    Family("RoFormer", "roformer", _roformer),
    Family("DebertaV2", "deberta-v2", _deberta_v2),
    Family("Deberta", "deberta", _deberta, tasks=_DEBERTA_TASKS),
    Family("XLM", "xlm", _xlm, class_names=_XLM_CLASSES),
    Family("Flaubert", "flaubert", _xlm, "xlm", class_names=_XLM_CLASSES),
    Family("MobileBert", "mobilebert", _mobilebert),
    Family("ConvBert", "convbert", _convbert),
    Family("Esm", "esm", _esm, tasks=_ESM_TASKS),
)
ARCHITECTURES = tuple(family.architecture(task) for family in FAMILIES for task in family.tasks)
