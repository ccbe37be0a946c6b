"""Buckets, and how many blocks the cache has."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from launch.serving.cache.windows import KeyWindow, blocks_of_text
from launch.serving.config import CACHE_DTYPES, EngineConfig, sizes
from launch.serving.errors import ServingError
from launch.serving.scheduler.buckets import Buckets, powers
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.speculation.config import read_speculative_config
from models.decoder.cache_groups import CacheGroups, reaches_within
from models.layers.masks import Chunks, Reach
from models.parallel.cache_split import CacheSplit

FACTOR = 4  # between the sizes of neighbouring buckets, if none are given


def choose_limits(
    config: EngineConfig,
    model: Any,
    mesh: Mesh,
    cache_dtype: str | None = None,
    *,
    reserved: int = 0,
) -> SchedulerLimits:
    """What there is room for, with a model of this config on this mesh, beside so many bytes that
    are reserved on each device.

    Raises ServingError if settings contradict each other or the cache does not fit the memory.
    """
    context = _context(config, model)
    size = config.block_size
    speculation = read_speculative_config(config.speculative_config)
    guesses = 0 if speculation is None else speculation.num_speculative_tokens
    buckets = choose_buckets(config, context)
    windows = layer_windows(config, model, context)
    per_text = sum(blocks_of_text(windows, context, max(buckets.chunk, 1 + guesses), size))
    bytes_per_block = block_bytes(config, model, mesh, cache_dtype)
    groups = config.attention_data_parallel_size
    return SchedulerLimits(
        context=context,
        blocks=groups * _blocks_of_group(config, mesh, per_text, bytes_per_block, reserved),
        block_size=size,
        buckets=buckets,
        prefix_caching=config.prefix_caching,
        prefills_per_decode=config.prefills_per_decode,
        guesses=guesses,
        groups=groups,
        windows=windows,
    )


def layer_groups(config: EngineConfig, model: Any) -> CacheGroups:
    """Which layers of a model share a block table: all, if blocks are to be kept."""
    speculation = read_speculative_config(config.speculative_config)
    # What guesses by a cache of its own looks at all blocks.
    keeps = speculation is not None and speculation.method in ("draft_model", "eagle")
    if config.disable_hybrid_kv_cache_manager or keeps:
        return CacheGroups.single(model.num_layers)
    return CacheGroups.by_reach(reaches_within(model, _context(config, model)))


def layer_windows(config: EngineConfig, model: Any, context: int) -> tuple[KeyWindow, ...]:
    """What the layers of each group look at."""
    groups, reaches = layer_groups(config, model), reaches_within(model, context)
    return tuple(map(_window, groups.of_groups(reaches)))


def _window(reach: Reach) -> KeyWindow:
    if isinstance(reach, Chunks):
        return KeyWindow(reach.size, is_chunk=True)
    return KeyWindow(reach)


def choose_buckets(config: EngineConfig, context: int) -> Buckets:
    """The buckets that are given, or powers; of rows, as many for each group that attention has."""
    size, groups = config.block_size, config.attention_data_parallel_size
    longest = min(config.max_num_batched_tokens // groups, max(context, 2))
    tokens = _read_sizes(config, "prefill_buckets") or powers(min(32, longest), longest, FACTOR)
    sequences = -(-config.max_num_seqs // groups)
    rows = max(1, min(sequences, config.max_num_batched_tokens // (groups * tokens[-1])))
    lengths = _read_sizes(config, "context_buckets")
    return Buckets(
        decode_rows=_read_sizes(config, "num_seqs_buckets")
        or tuple(groups * size for size in powers(1, sequences, FACTOR)),
        prefill_rows=_read_sizes(config, "prefill_rows_buckets")
        or tuple(groups * size for size in powers(1, rows, FACTOR)),
        prefill_tokens=tokens,
        blocks=tuple(-(-length // size) for length in lengths)
        or powers(max(1, 256 // size), -(-context // size), FACTOR),
        batched_tokens=config.max_num_batched_tokens,
    )


def _read_sizes(config: EngineConfig, name: str) -> tuple[int, ...]:
    text = getattr(config, name)
    return () if text is None else sizes(name, text)


def _context(config: EngineConfig, model: Any) -> int:
    # Beyond a boundary all keys in the cache would have to turn otherwise.
    longest = min([model.max_seq_len, *model.boundaries])
    context = longest if config.max_model_len is None else config.max_model_len
    if not 2 <= context <= longest:
        raise ServingError(
            f"--max_model_len={context}: this model's texts have 2 to {longest} tokens"
        )
    return context


def block_bytes(
    config: EngineConfig, model: Any, mesh: Mesh, cache_dtype: str | None = None
) -> int:
    """Bytes of a block on one device: keys and values of the layers of a group."""
    width = model.num_kv_heads // mesh.shape.get("model", 1) * model.head_dim
    block_size = config.block_size // mesh.shape.get(CacheSplit.axis, 1)
    itemsize = jax.numpy.dtype(cache_dtype or model.dtype).itemsize
    return 2 * layer_groups(config, model).size * block_size * width * itemsize


def cache_dtype(config: EngineConfig, parameters: Iterable[str]) -> str | None:
    """The dtype of the cache, of a model with these parameters; None = the model's."""
    has_scales = any(".cache_scales." in name for name in parameters)
    name = "fp8" if config.kv_cache_dtype == "auto" and has_scales else config.kv_cache_dtype
    return CACHE_DTYPES[name]


def _blocks_of_group(
    config: EngineConfig, mesh: Mesh, per_text: int, size: int, reserved: int
) -> int:
    groups = config.attention_data_parallel_size
    if config.num_blocks is None:
        wanted, least = -(-config.max_num_seqs // groups) * per_text, per_text
    elif config.num_blocks % groups:
        raise ServingError(
            f"--num_blocks={config.num_blocks} cannot be shared out to "
            f"--attention_data_parallel_size={groups} groups: give a multiple of it"
        )
    else:
        wanted = least = config.num_blocks // groups
    free = _free_bytes(mesh)
    if free is None:
        return wanted
    free -= reserved
    room = int(config.memory_share * free) // size - 1  # a block is of padding
    if room < least:
        raise ServingError(
            f"a cache of {least} blocks needs {least * size / 2**20:.1f} MiB on each device "
            f"({size} bytes per block), but {free / 2**20:.1f} MiB are free beside the weights, of "
            f"which --memory_share={config.memory_share} may be used: {max(room, 0)} blocks. "
            "Lower --num_blocks or --max_model_len, or split the model over more devices."
        )
    return min(wanted, room)


def _free_bytes(mesh: Mesh) -> int | None:
    """The least free memory of a device; None where the platform does not tell."""
    stats = [device.memory_stats() for device in np.ravel(mesh.devices)]
    if not all(stats):
        return None
    return min(int(memory["bytes_limit"] - memory["bytes_in_use"]) for memory in stats if memory)
