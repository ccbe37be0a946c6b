"""Rows of key tables for the layers that most families have."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from models.weights.table import Row, row
from models.weights.transforms import CONV_2D, FLAT, KERNEL, OUTPUT_KERNEL, SAME, Fused, Transform


def dense_rows(
    key: str, parameter: str, kernel: Transform = KERNEL, bias: Transform = SAME
) -> Iterator[Row]:
    """The rows of a linear layer."""
    yield row(f"{key}.weight", f"{parameter}.kernel", kernel)
    yield row(f"{key}.bias", f"{parameter}.bias", bias)


def fused_rows(
    key: str, parameters: Sequence[str], kernel: Transform = KERNEL, bias: Transform = FLAT
) -> Iterator[Row]:
    """Linear layers of one input, whose outputs lie one after another in one tensor."""
    yield row(f"{key}.weight", [f"{name}.kernel" for name in parameters], Fused(kernel))
    yield row(f"{key}.bias", [f"{name}.bias" for name in parameters], Fused(bias))


def norm_rows(key: str, parameter: str) -> Iterator[Row]:
    """The rows of a LayerNorm."""
    yield row(f"{key}.weight", f"{parameter}.scale")
    yield row(f"{key}.bias", f"{parameter}.bias")


def batch_norm_rows(key: str, parameter: str) -> Iterator[Row]:
    """A batch norm with its running statistics."""
    yield from norm_rows(key, parameter)
    yield row(f"{key}.running_mean", f"{parameter}.mean")
    yield row(f"{key}.running_var", f"{parameter}.variance")


def conv_norm_rows(key: str, parameter: str, norm: str = "normalization") -> Iterator[Row]:
    """A convolution without bias and its batch norm, which is called `norm` in the file."""
    yield row(f"{key}.convolution.weight", f"{parameter}.convolution.kernel", CONV_2D)
    yield from batch_norm_rows(f"{key}.{norm}", f"{parameter}.norm")


def inverted_rows(key: str, parameter: str) -> Iterator[Row]:
    """The rows of an inverted residual."""
    for theirs, ours in (("expand_1x1", "expand"), ("conv_3x3", "depthwise")):
        yield from conv_norm_rows(f"{key}.{theirs}", f"{parameter}.{ours}")
    yield from conv_norm_rows(f"{key}.reduce_1x1", f"{parameter}.reduce")


class BlockNames(NamedTuple):
    """What the parts of a pre-norm block of images are called in a file."""

    heads: tuple[str, str, str]  # queries, keys, values
    output: str = "attention.output.dense"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")


FILE_BLOCK = BlockNames(
    ("attention.attention.query", "attention.attention.key", "attention.attention.value")
)
# What transformers 5 holds in memory, and saves if asked to.
MEMORY_BLOCK = BlockNames(
    ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attention.o_proj",
    "mlp.fc1",
    "mlp.fc2",
)


# What fairseq's models hold, and those that were made from them.
FAIRSEQ_BLOCK = BlockNames(
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out_proj",
    "fc1",
    "fc2",
    ("self_attn_layer_norm", "final_layer_norm"),
)


def attention_rows(
    key: str,
    attention: str,
    heads: Sequence[str] = ("q_proj", "k_proj", "v_proj"),
    output: str = "out_proj",
) -> Iterator[Row]:
    """Queries, keys, values and the output of an attention layer."""
    for theirs, ours in zip(heads, ("query", "key", "value"), strict=True):
        yield from dense_rows(f"{key}.{theirs}", f"{attention}.{ours}", bias=FLAT)
    yield from dense_rows(f"{key}.{output}", f"{attention}.output", OUTPUT_KERNEL)


def block_rows(layer: str, block: str, names: BlockNames) -> Iterator[Row]:
    """The rows of a block of models/layers/blocks.py."""
    yield from attention_rows(layer, f"{block}.attention", names.heads, names.output)
    yield from dense_rows(f"{layer}.{names.up}", f"{block}.mlp.up")
    yield from dense_rows(f"{layer}.{names.down}", f"{block}.mlp.down")
    for theirs, ours in zip(names.norms, ("attention_norm", "mlp_norm"), strict=True):
        yield from norm_rows(f"{layer}.{theirs}", f"{block}.{ours}")
