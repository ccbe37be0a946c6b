"""The settings of an engine; the names are vLLM's where the meaning is the same."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How much of what is served at once. None: chosen, and printed."""

    max_model_len: int | None = None  # longest text, in tokens; None = the model's context
    max_num_seqs: int = 16  # sequences in a batch
    max_num_batched_tokens: int = 512  # of a step that computes prompts, padding included
    max_num_waiting: int = 1024  # sequences in the queue; more are refused
    block_size: int = 16  # tokens of a block of the cache
    num_blocks: int | None = None  # of the cache; None = full texts for all, or what memory allows
    memory_share: float = 0.9  # of what the weights leave of a device's memory: for the cache
    num_seqs_buckets: tuple[int, ...] | None = None  # sizes of batches that decode
    prefill_rows_buckets: tuple[int, ...] | None = None  # prompts of a step
    prefill_buckets: tuple[int, ...] | None = None  # lengths of pieces of prompts, in tokens
    context_buckets: tuple[int, ...] | None = None  # lengths of texts, in tokens
    prefix_caching: bool = True  # texts with the same beginning share its blocks
    async_scheduling: bool = True  # the host plans a step while the device is at the one before
    prefills_per_decode: int = 4  # steps of prompts in a row while others could decode
