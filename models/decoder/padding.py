"""Sizes of decoders that a mesh does not divide, as configs: caches are as large as these say."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.decoder.config import DecoderConfig
from models.padding import pad_heads, round_up
from models.sharding import TENSOR_AXES


def repeat_kv_heads(config: Any, mesh: Mapping[str, int]) -> Any:
    """The config with as many key and value heads as the axis `model` has parts, each for a share
    of its queries, or as there are heads of queries. NxD repeats them in the same way."""
    heads = max(config.num_kv_heads, min(mesh.get("model", 1), config.num_heads))
    return replace(config, num_kv_heads=heads)


def padded(config: DecoderConfig, mesh: Mapping[str, int]) -> DecoderConfig:
    """The config with the least sizes that a mesh of these axes divides: of the tables, of the
    heads by whole groups, and of feed-forward blocks. The same one if it divides them already."""
    cores = math.prod(mesh.get(axis, 1) for axis in TENSOR_AXES)
    heads, kv_heads = pad_heads(config.num_heads, config.num_kv_heads, mesh)
    experts = config.experts
    if experts is not None:
        shared = experts.shared_dim
        experts = replace(
            experts,
            hidden_dim=round_up(experts.hidden_dim, cores),
            shared_dim=None if shared is None else round_up(shared, cores),
        )
    return replace(
        config,
        vocab_padding=round_up(config.vocab_size, cores) - config.vocab_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        hidden_dim=round_up(config.hidden_dim, cores),
        experts=experts,
    )


def padding_of(asked: Any, used: Any) -> list[str]:
    """The sizes that a config has more of than the one that was asked for, in words."""
    names = ("num_heads", "num_kv_heads", "hidden_dim", "vocab_padding")
    sizes = [(name, getattr(asked, name, None), getattr(used, name, None)) for name in names]
    return [f"{name} padded from {old} to {new}" for name, old, new in sizes if old != new]
