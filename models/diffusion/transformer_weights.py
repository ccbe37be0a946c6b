"""Key tables of denoisers that are transformers: diffusers' names and our parameters."""

from collections.abc import Iterator

from models.weights.rows import attention_rows, dense_rows
from models.weights.table import KeyTable, Row, row
from models.weights.transforms import (
    CONV_2D,
    FLAT,
    KERNEL,
    OUTPUT_KERNEL,
    SAME,
    Fused,
    Kernel,
    Turned,
)

_ROLES = ("query", "key", "value")


def _two_maps(theirs: str, ours: str) -> Iterator[Row]:
    for i in (1, 2):
        yield from dense_rows(f"{theirs}.linear_{i}", f"{ours}.linear_{i}")


def _modulation(theirs: str, ours: str) -> Iterator[Row]:
    yield from dense_rows(theirs, f"{ours}.linear", bias=FLAT)


def _mlp(theirs: str, ours: str) -> Iterator[Row]:
    yield from dense_rows(f"{theirs}.net.0.proj", f"{ours}.up")
    yield from dense_rows(f"{theirs}.net.2", f"{ours}.down")


def _rotated_rows(theirs: tuple[str, str, str], ours: str) -> Iterator[Row]:
    """Queries and keys, whose pairs lie side by side in the file, and values."""
    for name, role in zip(theirs[:2], _ROLES, strict=False):
        yield from dense_rows(name, f"{ours}.{role}", Turned(KERNEL), Turned(FLAT))
    yield from dense_rows(theirs[2], f"{ours}.value", bias=FLAT)


def _head_norms(theirs: str, ours: str, added: str = "") -> Iterator[Row]:
    for letter, role in (("q", "query"), ("k", "key")):
        yield row(
            f"{theirs}.norm_{added}{letter}.weight", f"{ours}.{role}_norm.scale", Turned(SAME)
        )


def _joint_blocks() -> Iterator[Row]:
    theirs = "transformer_blocks.{i}"
    for stream, suffix, heads, output, added in (
        ("image", "", "to_{}", "to_out.0", ""),
        ("text", "_context", "add_{}_proj", "to_add_out", "added_"),
    ):
        ours = f"joint.{{i}}.{stream}"
        yield from _modulation(f"{theirs}.norm1{suffix}.linear", f"{ours}.modulation")
        q, k, v = (f"{theirs}.attn.{heads.format(letter)}" for letter in "qkv")
        yield from _rotated_rows((q, k, v), f"{ours}.attention")
        yield from _head_norms(f"{theirs}.attn", f"{ours}.attention", added)
        yield from dense_rows(f"{theirs}.attn.{output}", f"{ours}.attention.output", OUTPUT_KERNEL)
        yield from _mlp(f"{theirs}.ff{suffix}", f"{ours}.mlp")


def _single_blocks() -> Iterator[Row]:
    theirs, ours = "single_transformer_blocks.{i}", "single.{i}"
    yield from _modulation(f"{theirs}.norm.linear", f"{ours}.modulation")
    q, k, v = (f"{theirs}.attn.to_{letter}" for letter in "qkv")
    yield from _rotated_rows((q, k, v), f"{ours}.attention")
    yield from _head_norms(f"{theirs}.attn", f"{ours}.attention")
    yield from dense_rows(f"{theirs}.proj_mlp", f"{ours}.mlp.up")
    outwards = [f"{ours}.attention.output.kernel", f"{ours}.mlp.down.kernel"]
    yield row(f"{theirs}.proj_out.weight", outwards, Fused(Kernel(in_axes=-1), axis=1))
    yield row(f"{theirs}.proj_out.bias", f"{ours}.mlp.down.bias")


FLUX = KeyTable(
    (
        *dense_rows("x_embedder", "patches"),
        *dense_rows("context_embedder", "context"),
        *_two_maps("time_text_embed.timestep_embedder", "time"),
        *_two_maps("time_text_embed.guidance_embedder", "guidance"),
        *_two_maps("time_text_embed.text_embedder", "pooled"),
        *_joint_blocks(),
        *_single_blocks(),
        *_modulation("norm_out.linear", "modulation"),
        *dense_rows("proj_out", "outwards"),
    )
)


def _pixart_blocks() -> Iterator[Row]:
    theirs, ours = "transformer_blocks.{i}", "blocks.{i}"
    yield row(f"{theirs}.scale_shift_table", f"{ours}.table")
    for name, attention in (("attn1", "attention"), ("attn2", "cross_attention")):
        heads = ("to_q", "to_k", "to_v")
        yield from attention_rows(f"{theirs}.{name}", f"{ours}.{attention}", heads, "to_out.0")
    yield from _mlp(f"{theirs}.ff", f"{ours}.mlp")


PIXART = KeyTable(
    (
        *dense_rows("pos_embed.proj", "patches", CONV_2D),
        *_two_maps("caption_projection", "context"),
        *_two_maps("adaln_single.emb.timestep_embedder", "time"),
        *_two_maps("adaln_single.emb.resolution_embedder", "size"),
        *_two_maps("adaln_single.emb.aspect_ratio_embedder", "ratio"),
        *_modulation("adaln_single.linear", "modulation"),
        *_pixart_blocks(),
        row("scale_shift_table", "table"),
        *dense_rows("proj_out", "outwards"),
    ),
    ignored=(r"pos_embed\.pos_embed",),
)
