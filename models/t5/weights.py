"""Key table of T5: the tensors of Hugging Face checkpoints and their parameters."""

from collections.abc import Iterator

from models.t5.config import T5Config
from models.weights.table import KeyTable, Row, row
from models.weights.transforms import KERNEL, OUTPUT_KERNEL

TABLE, HEAD = "shared.weight", "lm_head.weight"
# Any of the tables that are one may be the only one that is stored.
SUBSTITUTES = ((TABLE, "encoder.embed_tokens.weight"), (TABLE, "decoder.embed_tokens.weight"))
IGNORED = (
    r"(encoder|decoder)\.embed_tokens\.weight",  # the embedding once more
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",  # unused
)


def _layer(layer: str, ours: str, parts: dict[str, str], norm: str) -> Iterator[Row]:
    """One layer of a block: its kernels, by key and path, and the norm before it."""
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
