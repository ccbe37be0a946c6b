"""The settings of an engine and its server; the names are vLLM's where the meaning is the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.serving.errors import ServingError
from launch.settings import check_settings, setting

CACHE_DTYPES: Mapping[str, str | None] = {
    "auto": None,
    "bfloat16": "bfloat16",
    "fp8": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
    "fp8_e4m3fn": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""vLLM's names -> dtype. Its E4M3 is float8_e4m3fn, which Trainium1 and 2 do not have."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How much of what is served at once. None: chosen, and printed."""

    max_model_len: int | None = setting(
        None, "Longest text, in tokens; default: the model's context.", lowest=2
    )
    max_source_len: int | None = setting(
        None, "Longest text that an encoder reads, in tokens; default: the model's.", lowest=1
    )
    max_num_seqs: int = setting(16, "Sequences in a batch.", lowest=1)
    max_num_batched_tokens: int = setting(
        512, "Tokens of a step that computes prompts, padding included.", lowest=2
    )
    max_num_waiting: int = setting(1024, "Requests in the queue; more get 503.", lowest=0)
    block_size: int = setting(16, "Tokens of a block of the cache.", lowest=1)
    num_blocks: int | None = setting(
        None, "Blocks of the cache; default: full texts for all, or what memory allows.", lowest=1
    )
    kv_cache_dtype: str = setting(
        "auto",
        "Type of keys and values in the cache; auto = the model's, or FP8 if it has scales for it.",
        choices=CACHE_DTYPES,
    )
    memory_share: float = setting(
        0.9, "Of what weights leave of a device's memory: for the cache.", lowest=0
    )
    num_seqs_buckets: str | None = setting(None, "Sizes of batches that decode, such as 1,4,16.")
    prefill_rows_buckets: str | None = setting(None, "Prompts of a step, such as 1,4.")
    prefill_buckets: str | None = setting(
        None, "Lengths of pieces of prompts, in tokens, such as 32,128,512."
    )
    context_buckets: str | None = setting(None, "Lengths of texts, in tokens, such as 1024,4096.")
    decode_context_parallel_size: int = setting(
        1,
        "Of the cores that share a model, so many hold the same key-value heads and a part of the "
        "positions each.",
        lowest=1,
    )
    attention_data_parallel_size: int = setting(
        1,
        "The cores that share a model form so many groups, each with slots and a cache of its own "
        "for attention; feed-forward blocks are split over all.",
        lowest=1,
    )
    speculative_config: str | None = setting(
        None,
        'Guess tokens: JSON such as {"method": "ngram", "num_speculative_tokens": 4}, or with '
        '"method": "draft_model", "medusa" or "eagle" and a "model", which is a directory.',
    )
    disaggregated_prefill: bool = setting(
        False, "Of two copies of the model (--mesh=data=2) the first computes prompts alone."
    )
    disable_hybrid_kv_cache_manager: bool = setting(
        False, "Layers that see a window of the text keep all its blocks, as the others do."
    )
    prefix_caching: bool = setting(True, "Texts with the same beginning share its blocks.")
    async_scheduling: bool = setting(
        True, "The host plans a step while the device is at the one before."
    )
    clock: str = setting(
        "host",
        "Whose seconds metrics and usage tell: this machine's (host), or those of the steps on the "
        "emulated device (device).",
        choices=("host", "device"),
    )
    prefills_per_decode: int = setting(
        4, "Steps of prompts in a row while others could decode.", lowest=1
    )

    warm_up: str = setting(
        "needed",
        "Programs that are compiled before the first request: enough to answer with, the others "
        "beside the first answers (needed), or all.",
        choices=("needed", "all"),
    )
    enable_lora: bool = setting(
        False, "Adapters may be loaded while the server runs; --lora_modules implies it."
    )
    lora_modules: str | None = setting(
        None, "Adapters in PEFT's layout, such as name=path,other=path."
    )
    max_loras: int = setting(4, "Adapters at once.", lowest=1)
    max_lora_rank: int = setting(16, "The highest rank of an adapter.", lowest=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def adapters(self) -> dict[str, Path]:
        """The directories of `lora_modules` by name. Raises ServingError for what is none."""
        parts = [part.strip() for part in (self.lora_modules or "").split(",") if part.strip()]
        pairs = [part.partition("=") for part in parts]
        if not all(name and path for name, _, path in pairs):
            raise ServingError(f"--lora_modules={self.lora_modules}: write name=path,other=path")
        return {name: Path(path) for name, _, path in pairs}


@dataclass(frozen=True, kw_only=True)
class ModelNames:
    """What a model is called, and how it is used."""

    served_model_name: str | None = setting(
        None, "The model's name; default: that of its directory."
    )
    chat_template: str | None = setting(
        None, "File or name of a chat template; default: the model's own, else chatml."
    )
    runner: str = setting(
        "auto",
        "What is served: text (generate), or vectors of texts (pooling); auto: what the model is "
        "made for.",
        choices=("auto", "generate", "pooling"),
    )
    pooling: str | None = setting(
        None,
        "How vectors of tokens become that of a text: the first, the last, the largest numbers "
        "or a mean; default: as the model's modules.json has it, else cls (decoders: lasttoken).",
        choices=("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
    )
    image_sizes: str | None = setting(
        None, "Sizes of images, such as 512x512,768x512; default: the model's own."
    )


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """What clients see and may do."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 is reachable from elsewhere.")
    port: int = setting(8000, "Port to listen on; 0 = any that is free.", lowest=0)
    api_key: str | None = setting(None, "Clients must send it; default: anybody may ask.")
    max_body_bytes: int = setting(4 << 20, "Bytes of a request's body.", lowest=1)
    request_timeout: float = setting(600.0, "Seconds for one answer that is no stream.", lowest=0)
    grace_period: float = setting(
        30.0, "Seconds that answers under way have after SIGTERM.", lowest=0
    )

    def __post_init__(self) -> None:
        check_settings(self)


def sizes(name: str, text: str) -> tuple[int, ...]:
    """ "1,4,16" -> (1, 4, 16). Raises ServingError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ServingError(f"--{name}={text}: write whole numbers with commas, such as 1,4,16")
    numbers = tuple(map(int, parts))
    if numbers[0] < 1 or list(numbers) != sorted(set(numbers)):
        raise ServingError(f"--{name}={text}: write positive numbers in ascending order")
    return numbers
