"""Key tables of encoders: the tensors of Hugging Face checkpoints and their parameters."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from models.encoder.config import EncoderConfig
from models.weights.rows import dense_rows, norm_rows
from models.weights.table import KeyTable, Row, row
from models.weights.text_heads import HeadKeys
from models.weights.transforms import (
    CONV_1D,
    FLAT,
    KERNEL,
    OUTPUT_KERNEL,
    SAME,
    FusedByHeads,
    Interleaved,
)

RENAMES = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))  # as converted from TensorFlow
PARTS = r"^(embeddings|embeddings_project|encoder|transformer|pooler|contact_head)\."  # of encoders
IGNORED = (r"(.*\.)?(position|token_type)_ids",)


@dataclass(frozen=True)
class BlockKeys:
    """Keys of a block's parts, within the block."""

    query: str
    key: str
    value: str
    output: str
    attention_norm: str
    up: str
    down: str
    mlp_norm: str
    interleaved: bool = False  # the numbers of a rotary pair lie side by side

    position_key: str = "attention.self.pos_key_proj"
    position_query: str = "attention.self.pos_query_proj"
    fused: str | None = None  # queries, keys and values, by heads, with biases of the others' keys
    grouped: bool = False  # kernels of the feed-forward block lie as here, by groups

    def rows(self, key: Callable[[str], str], parameter: str) -> Iterator[Row]:
        """The rows of a block; `key` makes the key of a part."""
        if self.fused is None:
            yield from self._apart(key, parameter)
        else:
            parts = [f"{parameter}.attention.{name}" for name in ("query", "key", "value")]
            kernels = [f"{part}.kernel" for part in parts]
            yield row(f"{key(self.fused)}.weight", kernels, FusedByHeads())
            yield row(key(self.query), f"{parts[0]}.bias", FLAT)
            yield row(key(self.value), f"{parts[2]}.bias", FLAT)
        for part, name in (
            ("position_key", self.position_key),
            ("position_query", self.position_query),
        ):
            yield from dense_rows(key(name), f"{parameter}.attention.{part}", KERNEL, FLAT)
        output = f"{parameter}.attention.output"
        yield from dense_rows(key(self.output), output, OUTPUT_KERNEL)
        yield from norm_rows(key(self.attention_norm), f"{parameter}.attention_norm")
        kernel, bias = (SAME, FLAT) if self.grouped else (KERNEL, SAME)
        for name, part in ((self.up, "up"), (self.down, "down")):
            yield from dense_rows(key(name), f"{parameter}.mlp.{part}", kernel, bias)
        yield from norm_rows(key(self.mlp_norm), f"{parameter}.mlp_norm")

    def _apart(self, key: Callable[[str], str], parameter: str) -> Iterator[Row]:
        for part, name in (("query", self.query), ("key", self.key), ("value", self.value)):
            turns = self.interleaved and part != "value"
            kernel, bias = (Interleaved(KERNEL), Interleaved(FLAT)) if turns else (KERNEL, FLAT)
            yield from dense_rows(key(name), f"{parameter}.attention.{part}", kernel, bias)


@dataclass(frozen=True)
class Layout:
    """The keys of a family.

    Attributes:
      prefix: of the encoder's keys in checkpoints with a head.
      block: the key of a part of block number i, or of block l of group g.
      parts: of the keys of a block.
      heads: by task.
      pooler: the pooler's key in the encoder; the encoders with some heads have one unused.
      project: the key of the projection of the embeddings.
      embeddings: the keys of the tables of words, positions and types.
      embedding_norm: the key of their norm.
      relative: the key of the table of distances.
      inside: the parts of encoders alone, which others call with the prefix.
      others: regular expressions of tensors for training alone.
    """

    prefix: str
    block: str
    parts: BlockKeys
    heads: Mapping[str, HeadKeys]
    pooler: str | None = "pooler"
    project: str = "embeddings_project"
    embeddings: tuple[str, str, str] = (
        "embeddings.word_embeddings",
        "embeddings.position_embeddings",
        "embeddings.token_type_embeddings",
    )
    embedding_norm: str = "embeddings.LayerNorm"
    relative: str = "encoder.relative_attention_bias.weight"
    inside: str = PARTS
    others: tuple[str, ...] = ()

    def table(self, config: EncoderConfig) -> KeyTable:
        """The key table for one config: encoders alone are stored without the prefix."""
        task = config.head.task
        alone = task == "feature-extraction"
        prefix = "" if alone else f"{self.prefix}."
        head = self.heads[task]
        used = head.transform is not None and head.transform.startswith("{prefix}")
        unused = () if used else self._pooler_keys(prefix)
        positions = () if config.has_position_table else (r"(.*\.)?position_embeddings\.weight",)
        contacts = () if config.contacts else (r"(.*\.)?contact_head\..*",)
        heads = (key for other in self.heads.values() for key in other.others())
        return KeyTable(
            (*self._encoder_rows(config, prefix), *head.rows(prefix)),
            (*RENAMES, (rf"^{self.prefix}\.", "") if alone else (self.inside, rf"{prefix}\1.")),
            (
                *IGNORED,
                *self.others,
                *positions,
                *contacts,
                *unused,
                *head.repeated(),
                *(heads if alone else ()),
            ),
            tuple(head.substitutes()),
        )

    def _encoder_rows(self, config: EncoderConfig, prefix: str) -> Iterator[Row]:
        for key, part in zip(self.embeddings, ("word", "position", "type"), strict=True):
            yield row(f"{prefix}{key}.weight", f"embeddings.{part}.table")
        yield row(f"{prefix}lang_embeddings.weight", "embeddings.language.table")
        yield from norm_rows(f"{prefix}{self.embedding_norm}", "embeddings.norm")
        yield from norm_rows(f"{prefix}encoder.emb_layer_norm_after", "norm")
        yield from dense_rows(f"{prefix}{self.project}", "embeddings.project")
        yield row(f"{prefix}{self.relative}", "relative.table")
        yield from norm_rows(f"{prefix}encoder.LayerNorm", "relative.norm")
        yield from dense_rows(f"{prefix}encoder.conv.conv", "ngrams.conv", CONV_1D)
        yield from norm_rows(f"{prefix}encoder.conv.LayerNorm", "ngrams.norm")
        regression = "contact_head.regression"
        yield from dense_rows(f"{prefix}{regression}", regression)
        parts = replace(self.parts, grouped=config.mlp_groups > 1)
        for i in range(config.num_blocks):
            group, place = divmod(i, config.blocks_per_group)
            yield from parts.rows(
                partial(self._part_key, prefix, {"i": i, "g": group, "l": place}), f"blocks.{i}"
            )

    def _part_key(self, prefix: str, numbers: Mapping[str, int], part: str) -> str:
        return prefix + f"{self.block}{part}".format(**numbers)

    def _pooler_keys(self, prefix: str) -> tuple[str, ...]:
        return () if self.pooler is None else (re.escape(f"{prefix}{self.pooler}.") + ".*",)


_SHARED = {
    "token-classification": HeadKeys(output="classifier"),
    "question-answering": HeadKeys(output="qa_outputs"),
}

_BERT_PARTS = BlockKeys(
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    mlp_norm="output.LayerNorm",
)
_BERT_POOLER = "{prefix}pooler.dense"
_POOLED = HeadKeys(transform=_BERT_POOLER, output="classifier")
_TWO_LAYERS = HeadKeys(transform="classifier.dense", output="classifier.out_proj")

BERT = Layout(
    prefix="bert",
    block="encoder.layer.{i}.",
    parts=_BERT_PARTS,
    heads={
        **_SHARED,
        "feature-extraction": HeadKeys(transform=_BERT_POOLER),
        "fill-mask": HeadKeys(
            transform="cls.predictions.transform.dense",
            norm="cls.predictions.transform.LayerNorm",
            table="cls.predictions.decoder",
            vocab_bias="cls.predictions.bias",
        ),
        "text-classification": _POOLED,
        "multiple-choice": _POOLED,
    },
    others=(r"cls\.seq_relationship\..*",),
)

_ROBERTA_HEADS = {
    **_SHARED,
    "feature-extraction": HeadKeys(transform=_BERT_POOLER),
    "fill-mask": HeadKeys(
        transform="lm_head.dense",
        norm="lm_head.layer_norm",
        table="lm_head.decoder",
        vocab_bias="lm_head.bias",
    ),
    "text-classification": _TWO_LAYERS,
    "multiple-choice": _POOLED,
}
ROBERTA = Layout("roberta", "encoder.layer.{i}.", _BERT_PARTS, _ROBERTA_HEADS)

MPNET = Layout(
    prefix="mpnet",
    block="encoder.layer.{i}.",
    parts=BlockKeys(
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        output="attention.attn.o",
        attention_norm="attention.LayerNorm",
        up="intermediate.dense",
        down="output.dense",
        mlp_norm="output.LayerNorm",
    ),
    heads=_ROBERTA_HEADS,
)

_DISTILBERT_CLASSIFIER = HeadKeys(transform="pre_classifier", output="classifier")
DISTILBERT = Layout(
    prefix="distilbert",
    block="transformer.layer.{i}.",
    parts=BlockKeys(
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        output="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        mlp_norm="output_layer_norm",
    ),
    heads={
        **_SHARED,
        "feature-extraction": HeadKeys(),
        "fill-mask": HeadKeys(
            transform="vocab_transform",
            norm="vocab_layer_norm",
            table="vocab_projector",
            vocab_bias="vocab_projector.bias",
        ),
        "text-classification": _DISTILBERT_CLASSIFIER,
        "multiple-choice": _DISTILBERT_CLASSIFIER,
    },
    pooler=None,
)

_ALBERT_POOLED = HeadKeys(transform="{prefix}pooler", output="classifier")
ALBERT = Layout(
    prefix="albert",
    block="encoder.albert_layer_groups.{g}.albert_layers.{l}.",
    parts=BlockKeys(
        query="attention.query",
        key="attention.key",
        value="attention.value",
        output="attention.dense",
        attention_norm="attention.LayerNorm",
        up="ffn",
        down="ffn_output",
        mlp_norm="full_layer_layer_norm",
    ),
    heads={
        **_SHARED,
        "feature-extraction": HeadKeys(transform="{prefix}pooler"),
        "fill-mask": HeadKeys(
            transform="predictions.dense",
            norm="predictions.LayerNorm",
            table="predictions.decoder",
            vocab_bias="predictions.bias",
        ),
        "text-classification": _ALBERT_POOLED,
        "multiple-choice": _ALBERT_POOLED,
    },
    project="encoder.embedding_hidden_mapping_in",
    others=(r"sop_classifier\..*",),
)

ELECTRA = Layout(
    prefix="electra",
    block="encoder.layer.{i}.",
    parts=_BERT_PARTS,
    heads={
        **_SHARED,
        "feature-extraction": HeadKeys(),
        "fill-mask": HeadKeys(
            transform="generator_predictions.dense",
            norm="generator_predictions.LayerNorm",
            table="generator_lm_head",
            vocab_bias="generator_lm_head.bias",
        ),
        "text-classification": _TWO_LAYERS,
        "multiple-choice": HeadKeys(transform="sequence_summary.summary", output="classifier"),
    },
    pooler=None,
)

ROFORMER = Layout(
    prefix="roformer",
    block="encoder.layer.{i}.",
    parts=replace(_BERT_PARTS, interleaved=True),
    heads={
        **BERT.heads,
        "feature-extraction": HeadKeys(),
        "text-classification": _TWO_LAYERS,
        "multiple-choice": HeadKeys(output="classifier"),
    },
    pooler=None,
    others=(r"(roformer\.)?encoder\.embed_positions\.weight",),
)

_DEBERTA_POOLED = HeadKeys(transform="pooler.dense", output="classifier")
DEBERTA_V2 = Layout(
    prefix="deberta",
    block="encoder.layer.{i}.",
    parts=replace(
        _BERT_PARTS,
        query="attention.self.query_proj",
        key="attention.self.key_proj",
        value="attention.self.value_proj",
    ),
    heads={
        **BERT.heads,
        "feature-extraction": HeadKeys(),
        "text-classification": _DEBERTA_POOLED,
        "multiple-choice": _DEBERTA_POOLED,
    },
    pooler=None,
    relative="encoder.rel_embeddings.weight",
    inside=r"^(embeddings|encoder)\.",
    others=(r"(lm|mask)_predictions\..*",),
)
DEBERTA = replace(
    DEBERTA_V2,
    parts=replace(
        _BERT_PARTS,
        query="attention.self.q_bias",
        value="attention.self.v_bias",
        fused="attention.self.in_proj",
        position_key="attention.self.pos_proj",
        position_query="attention.self.pos_q_proj",
    ),
)

_XLM_HEAD = HeadKeys(output="sequence_summary.summary")
XLM = Layout(
    prefix="transformer",
    block="",
    parts=BlockKeys(
        query="attentions.{i}.q_lin",
        key="attentions.{i}.k_lin",
        value="attentions.{i}.v_lin",
        output="attentions.{i}.out_lin",
        attention_norm="layer_norm1.{i}",
        up="ffns.{i}.lin1",
        down="ffns.{i}.lin2",
        mlp_norm="layer_norm2.{i}",
    ),
    heads={
        **_SHARED,
        "feature-extraction": HeadKeys(),
        "fill-mask": HeadKeys(table="pred_layer.proj", vocab_bias="pred_layer.proj.bias"),
        "text-classification": _XLM_HEAD,
        "multiple-choice": HeadKeys(transform="sequence_summary.summary", output="logits_proj"),
    },
    pooler=None,
    embeddings=("embeddings", "position_embeddings", "token_type_embeddings"),
    embedding_norm="layer_norm_emb",
    inside=r"^((position_|lang_)?embeddings|layer_norm_emb|attentions|layer_norm[12]|ffns)\.",
)

ESM = Layout(
    prefix="esm",
    block="encoder.layer.{i}.",
    parts=replace(_BERT_PARTS, attention_norm="attention.LayerNorm", mlp_norm="LayerNorm"),
    heads=_ROBERTA_HEADS,
    embedding_norm="embeddings.layer_norm",
    others=(r"(.*\.)?inv_freq",),
)


class _BottleneckKeys(BlockKeys):
    """Keys of MobileBERT's blocks."""

    def rows(self, key: Callable[[str], str], parameter: str) -> Iterator[Row]:
        yield from super().rows(key, parameter)
        for theirs, ours in (
            ("bottleneck.input", "narrow"),
            ("bottleneck.attention", "look"),
            ("output.bottleneck", "wide"),
        ):
            yield from dense_rows(key(f"{theirs}.dense"), f"{parameter}.{ours}.dense")
            yield from norm_rows(key(f"{theirs}.LayerNorm"), f"{parameter}.{ours}.norm")
        early = "ffn.{{k}}."  # doubled braces: `key` fills in the number of the block
        for theirs, ours in (("intermediate", "up"), ("output", "down")):
            yield from dense_rows(
                key(f"{early}{theirs}.dense"), f"{parameter}.early_mlps.{{k}}.{ours}"
            )
        yield from norm_rows(key(f"{early}output.LayerNorm"), f"{parameter}.early_norms.{{k}}")


MOBILEBERT = replace(
    BERT,
    prefix="mobilebert",
    parts=_BottleneckKeys(**vars(_BERT_PARTS)),
    heads={
        **BERT.heads,
        "fill-mask": replace(BERT.heads["fill-mask"], vocab_rest="cls.predictions.dense"),
    },
    project="embeddings.embedding_transformation",
)


class _SpanKeys(BlockKeys):
    """Keys of ConvBERT's blocks."""

    def rows(self, key: Callable[[str], str], parameter: str) -> Iterator[Row]:
        yield from super().rows(key, parameter)
        theirs, ours = "attention.self.key_conv_attn_layer", f"{parameter}.attention.span"
        for part in ("depthwise", "pointwise"):
            yield row(key(f"{theirs}.{part}.weight"), f"{ours}_{part}.kernel", CONV_1D)
        yield row(key(f"{theirs}.bias"), f"{ours}_bias")
        weights = key("attention.self.conv_kernel_layer")
        yield from dense_rows(weights, f"{ours}_weights", OUTPUT_KERNEL)
        yield from dense_rows(key("attention.self.conv_out_layer"), f"{ours}_value", KERNEL, FLAT)


CONVBERT = replace(
    ELECTRA,
    prefix="convbert",
    parts=_SpanKeys(**vars(_BERT_PARTS)),
    heads={**ELECTRA.heads, "multiple-choice": HeadKeys(output="classifier")},
)
