"""Buckets, and how many blocks the cache has."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from launch.serving.config import EngineConfig
from launch.serving.errors import ServingError
from launch.serving.scheduler.buckets import Buckets, powers
from launch.serving.scheduler.scheduler import SchedulerLimits

FACTOR = 4  # between the sizes of neighbouring buckets, if none are given


def choose_limits(config: EngineConfig, model: Any, mesh: Mesh) -> SchedulerLimits:
    """What there is room for, with a model of this config on this mesh.

    Raises ServingError if settings contradict each other or the cache does not fit the memory.
    """
    context = _context(config, model)
    size = config.block_size
    if size < 1 or config.max_num_seqs < 1:
        raise ServingError(
            f"block_size={size} and max_num_seqs={config.max_num_seqs} must be positive"
        )
    per_text = -(-context // size)
    return SchedulerLimits(
        context=context,
        blocks=_blocks(config, model, mesh, per_text),
        block_size=size,
        buckets=choose_buckets(config, context),
        prefix_caching=config.prefix_caching,
        prefills_per_decode=config.prefills_per_decode,
    )


def choose_buckets(config: EngineConfig, context: int) -> Buckets:
    """The buckets that are given, or powers."""
    per_text = -(-context // config.block_size)
    if config.context_buckets is None:
        blocks = powers(max(1, 256 // config.block_size), per_text, FACTOR)
    else:
        blocks = tuple(-(-length // config.block_size) for length in config.context_buckets)
    longest = min(config.max_num_batched_tokens, max(context, 2))
    tokens = config.prefill_buckets or powers(min(32, longest), longest, FACTOR)
    rows = max(1, min(config.max_num_seqs, config.max_num_batched_tokens // tokens[0]))
    return Buckets(
        decode_rows=config.num_seqs_buckets or powers(1, config.max_num_seqs, FACTOR),
        prefill_rows=config.prefill_rows_buckets or powers(1, rows, FACTOR),
        prefill_tokens=tokens,
        blocks=blocks,
        batched_tokens=config.max_num_batched_tokens,
    )


def _context(config: EngineConfig, model: Any) -> int:
    # Beyond a boundary all keys in the cache would have to turn otherwise.
    longest = min([model.max_seq_len, *model.boundaries])
    context = longest if config.max_model_len is None else config.max_model_len
    if not 2 <= context <= longest:
        raise ServingError(
            f"max_model_len={context} is not possible: the model's texts have 2 to {longest} tokens"
        )
    return context


def block_bytes(model: Any, block_size: int, heads_split: int = 1) -> int:
    """Bytes of a block on one device: keys and values of all layers."""
    width = model.num_kv_heads // heads_split * model.head_dim
    return 2 * model.num_layers * block_size * width * jax.numpy.dtype(model.dtype).itemsize


def _blocks(config: EngineConfig, model: Any, mesh: Mesh, per_text: int) -> int:
    wanted = config.max_num_seqs * per_text if config.num_blocks is None else config.num_blocks
    least = per_text if config.num_blocks is None else config.num_blocks
    if wanted < 1:
        raise ServingError(f"num_blocks={wanted} must be positive")
    free = _free_bytes(mesh)
    if free is None:
        return wanted
    size = block_bytes(model, config.block_size, mesh.shape.get("model", 1))
    room = int(config.memory_share * free) // size - 1  # a block is of padding
    if room < least:
        raise ServingError(
            f"a cache of {least} blocks needs {least * size / 2**20:.1f} MiB on each device "
            f"({size} bytes per block), but {free / 2**20:.1f} MiB are free beside the weights, of "
            f"which memory_share={config.memory_share} may be used: {max(room, 0)} blocks. Lower "
            "num_blocks or max_model_len, or split the model over more devices."
        )
    return min(wanted, room)


def _free_bytes(mesh: Mesh) -> int | None:
    """The least free memory of a device; None where the platform does not tell."""
    stats = [device.memory_stats() for device in np.ravel(mesh.devices)]
    if not all(stats):
        return None
    return min(int(each["bytes_limit"] - each["bytes_in_use"]) for each in stats if each)
