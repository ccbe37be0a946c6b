"""T5: from its config.json and its tensors to its models."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.t5.config import T5Config
from models.t5.model import T5, T5Encoder
from models.weights.fields import Fields
from models.weights.table import KeyTable, Row, row
from models.weights.tied import stored_apart
from models.weights.transforms import KERNEL, OUTPUT_KERNEL

TABLE, HEAD = "shared.weight", "lm_head.weight"
# Any of the tables that are one may be the only one that is stored.
SUBSTITUTES = ((TABLE, "encoder.embed_tokens.weight"), (TABLE, "decoder.embed_tokens.weight"))
IGNORED = (
    r"(encoder|decoder)\.embed_tokens\.weight",  # the embedding once more
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",  # unused
)


def _layer(layer: str, ours: str, parts: dict[str, str], norm: str) -> Iterator[Row]:
    """The rows of one layer of a block: its kernels, by key and path, and the norm before it."""
    for key, path in parts.items():
        transform = OUTPUT_KERNEL if path.endswith("output") else KERNEL
        yield row(f"{layer}.{key}.weight", f"{ours}.{path}.kernel", transform)
    yield row(f"{layer}.layer_norm.weight", f"{ours}.{norm}.scale")


def _attention(theirs: str, ours: str) -> dict[str, str]:
    names = {"q": "query", "k": "key", "v": "value", "o": "output"}
    return {f"{theirs}.{key}": f"{ours}.{path}" for key, path in names.items()}


def _stack(stack: str, config: T5Config) -> Iterator[Row]:
    key, ours = f"{stack}.block.{{i}}.layer", f"{stack}.blocks.{{i}}"
    yield row(
        f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        f"{stack}.relative.table",
    )
    layers = [(_attention("SelfAttention", "attention"), "attention_norm")]
    if stack == "decoder":
        layers.append((_attention("EncDecAttention", "cross_attention"), "cross_norm"))
    up = {"wi_0": "gate", "wi_1": "up"} if config.gated else {"wi": "up"}
    kernels = {**up, "wo": "down"}
    layers.append(
        ({f"DenseReluDense.{name}": f"mlp.{path}" for name, path in kernels.items()}, "mlp_norm")
    )
    for number, (parts, norm) in enumerate(layers):
        yield from _layer(f"{key}.{number}", ours, parts, norm)
    yield row(f"{stack}.final_layer_norm.weight", f"{stack}.norm.scale")


def encoder_table(config: T5Config) -> KeyTable:
    """The table of the encoder alone: of whole checkpoints, the rest is not read."""
    return KeyTable(
        (row("shared.weight", "embedding.table"), *_stack("encoder", config)),
        ignored=(r"(encoder\.embed_tokens|lm_head)\.weight", r"decoder\..*"),
        substitutes=SUBSTITUTES[:1],
    )


def key_table(config: T5Config) -> KeyTable:
    """The table for one config: a tied head may be stored, but is not read."""
    head = () if config.tie_embeddings else (row(HEAD, "head.table"),)
    return KeyTable(
        (
            row("shared.weight", "embedding.table"),
            *_stack("encoder", config),
            *_stack("decoder", config),
            *head,
        ),
        ignored=(*IGNORED, *((r"lm_head\.weight",) if config.tie_embeddings else ())),
        substitutes=SUBSTITUTES,
    )


# Version 1.1 was trained with the tanh approximation, whatever its config calls it.
ACTS = {"gelu": "gelu_new"}


def _read(fields: Fields) -> Mapping[str, Any]:
    act, gated = _feed_forward(fields)
    # Transformers 4 tells version 1.1 by its head alone; 5 says that the output is not scaled, and
    # calls every head tied.
    tied = fields.flag("tie_word_embeddings")
    scale_logits = fields.flag("scale_decoder_outputs", tied)
    return {
        "start_token": fields.integer("decoder_start_token_id", fields.integer("pad_token_id")),
        "num_decoder_layers": fields.integer("num_decoder_layers", fields.positive("num_layers")),
        "act": act,
        "gated": gated,
        "tie_embeddings": tied and scale_logits,
        "scale_logits": scale_logits,
    }


def _feed_forward(fields: Fields) -> tuple[str, bool]:
    """The activation, and whether it is a gate."""
    text = fields.text("feed_forward_proj")
    gated, _, act = text.rpartition("-")
    if gated not in ("", "gated"):
        raise fields.fail("feed_forward_proj", "it must be an activation or gated-<activation>")
    return (ACTS.get(act, act) if gated else act), bool(gated)


def _refine(config: T5Config, tensors: Mapping[str, Any]) -> T5Config:
    """A head of its own is one that is stored: with other numbers than the embedding, or at all if
    the outputs are not scaled."""
    if config.scale_logits:
        is_tied = config.tie_embeddings and not stored_apart(tensors, TABLE, HEAD)
        return replace(config, tie_embeddings=is_tied)
    return replace(config, tie_embeddings=HEAD not in tensors)


_architecture = partial(Architecture.of, config=T5Config(), read=_read)
ARCHITECTURES = (
    _architecture(
        "T5ForConditionalGeneration",
        model=T5,
        keys=key_table,
        task="text2text-generation",
        refine=_refine,
    ),
    _architecture("T5EncoderModel", model=T5Encoder, keys=encoder_table, task="feature-extraction"),
)
