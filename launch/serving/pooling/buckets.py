"""The static shapes of batches that the settings of the engine say."""

from launch.pooling.buckets import TextBuckets
from launch.serving.config import EngineConfig, sizes
from launch.serving.errors import ServingError
from launch.serving.scheduler.buckets import powers

FACTOR = 4  # between the sizes of neighbouring buckets, if none are given
SHORTEST = 32  # tokens


def choose_text_buckets(config: EngineConfig, context: int) -> TextBuckets:
    """The buckets that are given, or powers. Raises ServingError if they cannot be."""
    longest = context if config.max_model_len is None else config.max_model_len
    if longest > context:
        raise ServingError(
            f"--max_model_len={longest}: this model's texts have {context} tokens at most"
        )
    rows, tokens = config.num_seqs_buckets, config.prefill_buckets
    buckets = TextBuckets(
        rows=sizes("num_seqs_buckets", rows) if rows else powers(1, config.max_num_seqs, FACTOR),
        tokens=sizes("prefill_buckets", tokens)
        if tokens
        else powers(min(SHORTEST, longest), longest, FACTOR),
        batched_tokens=config.max_num_batched_tokens,
    )
    for name, given in (("num_seqs_buckets", buckets.rows), ("prefill_buckets", buckets.tokens)):
        if given[0] < 1 or list(given) != sorted(set(given)):
            raise ServingError(f"--{name}={given}: give positive numbers in ascending order")
    if buckets.longest > longest:
        raise ServingError(
            f"--prefill_buckets={tokens}: the model's texts have up to {longest} tokens"
        )
    return buckets
