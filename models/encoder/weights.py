"""Key tables of encoders: the tensors of Hugging Face checkpoints and their parameters."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from models.encoder.config import EncoderConfig
from models.records import read_records
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
    Turned,
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
        yield from _bottleneck_rows(key, parameter)
        yield from _span_rows(key, f"{parameter}.attention.span")

    def _apart(self, key: Callable[[str], str], parameter: str) -> Iterator[Row]:
        for part, name in (("query", self.query), ("key", self.key), ("value", self.value)):
            turns = self.interleaved and part != "value"
            kernel, bias = (Turned(KERNEL), Turned(FLAT)) if turns else (KERNEL, FLAT)
            yield from dense_rows(key(name), f"{parameter}.attention.{part}", kernel, bias)


def _bottleneck_rows(key: Callable[[str], str], parameter: str) -> Iterator[Row]:
    """The rows that MobileBERT's blocks have besides."""
    for theirs, ours in (
        ("bottleneck.input", "narrow"),
        ("bottleneck.attention", "look"),
        ("output.bottleneck", "wide"),
    ):
        yield from dense_rows(key(f"{theirs}.dense"), f"{parameter}.{ours}.dense")
        yield from norm_rows(key(f"{theirs}.LayerNorm"), f"{parameter}.{ours}.norm")
    early = "ffn.{{k}}."  # doubled braces: `key` fills in the number of the block
    for theirs, ours in (("intermediate", "up"), ("output", "down")):
        yield from dense_rows(key(f"{early}{theirs}.dense"), f"{parameter}.early_mlps.{{k}}.{ours}")
    yield from norm_rows(key(f"{early}output.LayerNorm"), f"{parameter}.early_norms.{{k}}")


def _span_rows(key: Callable[[str], str], span: str) -> Iterator[Row]:
    """The rows that ConvBERT's attention has besides."""
    theirs = "attention.self.key_conv_attn_layer"
    for part in ("depthwise", "pointwise"):
        yield row(key(f"{theirs}.{part}.weight"), f"{span}_{part}.kernel", CONV_1D)
    yield row(key(f"{theirs}.bias"), f"{span}_bias")
    yield from dense_rows(key("attention.self.conv_kernel_layer"), f"{span}_weights", OUTPUT_KERNEL)
    yield from dense_rows(key("attention.self.conv_out_layer"), f"{span}_value", KERNEL, FLAT)


@dataclass(frozen=True)
class Layout:
    """The keys of a family.

    Attributes:
      prefix: of the encoder's keys in checkpoints with a head.
      parts: of the keys of a block.
      heads: by task.
      block: the key of a part of block number i, or of block l of group g.
      pooler: the pooler's key in the encoder; the encoders with some heads have one unused.
      project: the key of the projection of the embeddings.
      embeddings: the keys of the tables of words, positions and types.
      embedding_norm: the key of their norm.
      relative: the key of the table of distances.
      inside: the parts of encoders alone, which others call with the prefix.
      others: regular expressions of tensors for training alone.
    """

    prefix: str
    parts: BlockKeys
    heads: Mapping[str, HeadKeys]
    block: str = "encoder.layer.{i}."
    pooler: str | None = "pooler"
    project: str = "embeddings_project"
    embeddings: Sequence[str] = (
        "embeddings.word_embeddings",
        "embeddings.position_embeddings",
        "embeddings.token_type_embeddings",
    )
    embedding_norm: str = "embeddings.LayerNorm"
    relative: str = "encoder.relative_attention_bias.weight"
    inside: str = PARTS
    others: Sequence[str] = ()

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


def _layout(record: Mapping[str, Any]) -> Layout:
    heads = {task: HeadKeys(**keys) for task, keys in record["heads"].items()}
    return Layout(**{**record, "parts": BlockKeys(**record["parts"]), "heads": heads})


LAYOUTS = {
    name: _layout(record) for name, record in read_records(Path(__file__).with_name("keys.json"))
}
"""The layouts of keys.json by name: of a family, or of several whose keys are the same."""
