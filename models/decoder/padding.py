"""Decoders whose sizes a mesh does not divide: zeros make them larger, and change no logits.

A head, a feed-forward column or a token that is all zeros adds nothing. Neuron's own libraries pad
the same sizes (neuronx-distributed, `parallel_layers/pad.py`).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.decoder.config import DecoderConfig
from models.sharding import HEAD_AXES, TENSOR_AXES


def repeat_kv_heads(config: Any, mesh: Mapping[str, int]) -> Any:
    """The config with as many key and value heads as the axis `model` has parts, each for a share
    of its queries, or as there are heads of queries. NxD repeats them in the same way."""
    heads = max(config.num_kv_heads, min(mesh.get("model", 1), config.num_heads))
    return replace(config, num_kv_heads=heads)


def padded(config: DecoderConfig, mesh: Mapping[str, int]) -> DecoderConfig:
    """The config with the least sizes that a mesh of these axes divides: of the tables, of the
    heads by whole groups, and of feed-forward blocks. The same one if it divides them already."""
    model = mesh.get("model", 1)
    cores = math.prod(mesh.get(axis, 1) for axis in TENSOR_AXES)
    sharing_heads = math.prod(mesh.get(axis, 1) for axis in HEAD_AXES)
    groups = config.num_heads // config.num_kv_heads
    kv_heads = _up(config.num_kv_heads, model)
    while kv_heads * groups % sharing_heads:
        kv_heads += model
    experts = config.experts
    if experts is not None:
        shared = experts.shared_dim
        experts = replace(
            experts,
            hidden_dim=_up(experts.hidden_dim, cores),
            shared_dim=None if shared is None else _up(shared, cores),
        )
    return replace(
        config,
        vocab_padding=_up(config.vocab_size, cores) - config.vocab_size,
        num_heads=kv_heads * groups,
        num_kv_heads=kv_heads,
        hidden_dim=_up(config.hidden_dim, cores),
        experts=experts,
    )


def padding_of(asked: Any, used: Any) -> list[str]:
    """The sizes that a config has more of than the one that was asked for, in words."""
    names = ("num_heads", "num_kv_heads", "hidden_dim", "vocab_padding")
    sizes = [(name, getattr(asked, name, None), getattr(used, name, None)) for name in names]
    return [f"{name} padded from {old} to {new}" for name, old, new in sizes if old != new]


def _up(size: int, divisor: int) -> int:
    return -(-size // divisor) * divisor
