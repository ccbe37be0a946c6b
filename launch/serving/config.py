"""The settings of an engine and its server; the names are vLLM's where the meaning is the same."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.serving.errors import ServingError
from launch.serving.parsers import REASONING_PARSERS, TOOL_PARSERS
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


_BY_LAYER = (
    "enable_lora",
    "lora_modules",
    "decode_context_parallel_size",
    "attention_data_parallel_size",
)
"""Settings that change each layer by itself."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes and choices of an engine; what is None is chosen, and printed."""

    max_model_len: int | None = setting(
        None, "Longest text, in tokens; default: the model's context.", lowest=2
    )
    max_source_len: int | None = setting(
        None, "Longest text for an encoder, in tokens; default: the model's.", lowest=1
    )
    max_images: int = setting(4, "Images in a conversation with a model that sees them.", lowest=1)
    max_num_seqs: int = setting(16, "Sequences in a batch.", lowest=1)
    max_num_batched_tokens: int = setting(
        512, "Tokens of a prefill step, padding included.", lowest=2
    )
    max_num_waiting: int = setting(
        1024, "Requests of one client that may wait in the queue; further ones get 429.", lowest=0
    )
    max_tokens_per_minute: int | None = setting(
        None,
        "Tokens of prompts and answers that one client may have within a minute; then it gets 429.",
        lowest=1,
    )
    scan_layers: bool = setting(
        False,
        "Compile one block of a model of text for all: deep models start sooner, but answer "
        "slower.",
    )
    block_size: int = setting(16, "Tokens per cache block.", lowest=1)
    num_blocks: int | None = setting(
        None,
        "Cache blocks; default: enough for every sequence at full length, or what memory allows.",
        lowest=1,
    )
    kv_cache_dtype: str = setting(
        "auto",
        "Type of keys and values in the cache; auto = the model's, or FP8 if it has scales for it.",
        choices=CACHE_DTYPES,
    )
    memory_share: float = setting(
        0.9, "Share of the memory that weights leave free which the cache takes.", lowest=0
    )
    num_seqs_buckets: str | None = setting(None, "Batch sizes for decoding, such as 1,4,16.")
    prefill_rows_buckets: str | None = setting(
        None, "Numbers of prompts in a prefill step, such as 1,4."
    )
    prefill_buckets: str | None = setting(
        None, "Lengths of prompt chunks, in tokens, such as 32,128,512."
    )
    context_buckets: str | None = setting(None, "Context lengths, in tokens, such as 1024,4096.")
    decode_context_parallel_size: int = setting(
        1,
        "Decode context parallelism: this many of the cores that share a model hold the "
        "same key-value heads, each for a part of the positions.",
        lowest=1,
    )
    attention_data_parallel_size: int = setting(
        1,
        "Attention data parallelism: the cores that share a model form this many "
        "groups, each with its own slots and cache; feed-forward blocks are split over "
        "all of them.",
        lowest=1,
    )
    speculative_config: str | None = setting(
        None,
        'Speculative decoding: JSON such as {"method": "ngram", '
        '"num_speculative_tokens": 4}; the methods "draft_model", "medusa" and "eagle" '
        'also need a "model", which is a directory.',
    )
    disaggregated_prefill: bool = setting(
        False, "With two copies of the model (--mesh=data=2), the first one only computes prompts."
    )
    disable_hybrid_kv_cache_manager: bool = setting(
        False, "Keep all cache blocks of layers with a sliding window, as for other layers."
    )
    prefix_caching: bool = setting(True, "Let texts with the same beginning share cache blocks.")
    async_scheduling: bool = setting(
        True, "Let the host plan a step while the device computes the one before."
    )
    delivery_interval: float = setting(
        0.04,
        "Least seconds between deliveries of new tokens to their clients: those of shorter steps "
        "go together; first and last tokens go at once. 0: after every step.",
        lowest=0,
    )
    clock: str = setting(
        "host",
        "Which clock metrics and usage follow: this machine's (host), or the simulated "
        "device's (device).",
        choices=("host", "device"),
    )
    prefills_per_decode: int = setting(
        4, "Consecutive prefill steps while other sequences wait to decode.", lowest=1
    )

    compilation_cache_dir: str = setting(
        "~/.cache/neuronjax",
        "Folder where compiled programs are kept for the next start, unless "
        "JAX_COMPILATION_CACHE_DIR names one; empty: none.",
    )
    warm_up: str = setting(
        "needed",
        "Programs to compile before the first request: all, or those that are needed to "
        "answer (needed), with the rest compiled while the first answers are made.",
        choices=("needed", "all"),
    )
    enable_lora: bool = setting(
        False, "Allow adapters, also ones loaded while the server runs; --lora_modules implies it."
    )
    lora_modules: str | None = setting(
        None, "Adapters in PEFT's layout, such as name=path,other=path."
    )
    lora_folders: str | None = setting(
        None,
        "Folders below which clients may have adapters loaded, such as a,b; default: none.",
    )
    max_loras: int = setting(
        4, "Adapters on the device at the same time; requests for others wait.", lowest=1
    )
    max_cpu_loras: int = setting(
        64, "Adapters in the host's memory; others are read when they are asked for.", lowest=1
    )
    max_lora_rank: int = setting(16, "Highest rank of an adapter.", lowest=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def check_loop(self) -> None:
        """Raises ServingError for settings that layers in one loop do not go with."""
        usual = EngineConfig()
        others = [name for name in _BY_LAYER if getattr(self, name) != getattr(usual, name)]
        if self.scan_layers and others:
            raise ServingError(
                f"--scan_layers does not go with --{others[0]}: leave one of them out"
            )

    def adapters(self) -> dict[str, Path]:
        """The directories of `lora_modules` by name. Raises ServingError for what is none."""
        parts = [part.strip() for part in (self.lora_modules or "").split(",") if part.strip()]
        pairs = [part.partition("=") for part in parts]
        if not all(name and path for name, _, path in pairs):
            raise ServingError(f"--lora_modules={self.lora_modules}: write name=path,other=path")
        return {name: Path(path) for name, _, path in pairs}


@dataclass(frozen=True, kw_only=True)
class ModelNames:
    """The name of a model, and the way in which it is used."""

    served_model_name: str | None = setting(
        None, "The model's name; default: that of its directory."
    )
    chat_template: str | None = setting(
        None, "File or name of a chat template; default: the model's own, else chatml."
    )
    tool_call_parser: str = setting(
        "auto",
        "How the model writes calls of tools; auto: as its chat template shows.",
        choices=("auto", "none", *TOOL_PARSERS),
    )
    reasoning_parser: str = setting(
        "auto",
        "How the model writes thoughts; auto: as its chat template shows; none: they are text.",
        choices=("auto", "none", *REASONING_PARSERS),
    )
    runner: str = setting(
        "auto",
        "What is served: text (generate), or vectors of texts (pooling); auto: what the model is "
        "made for.",
        choices=("auto", "generate", "pooling"),
    )
    pooling: str | None = setting(
        None,
        "How token vectors become the vector of a text: the first, the last, the "
        "maximum or the mean; default: what the model's modules.json says, else cls "
        "(decoders: lasttoken).",
        choices=("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
    )
    image_sizes: str | None = setting(
        None, "Sizes of images, such as 512x512,768x512; default: the model's own."
    )


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The settings that clients notice: addresses, keys and limits."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 is reachable from elsewhere.")
    port: int = setting(8000, "Port to listen on; 0 = any that is free.", lowest=0)
    uds: str | None = setting(
        None, "Path of a Unix socket to listen on, instead of an address and a port."
    )
    replicas: int = setting(
        1,
        "Servers of the model behind this address, each in processes of its own and with all of "
        "--mesh; one that ends is started again, and its requests go to the others.",
        lowest=1,
    )
    api_key: str | None = setting(
        None, "API key that clients must send; others on this machine see it in the command."
    )
    api_key_file: str | None = setting(None, "File with the API key that clients must send.")
    allowed_hosts: str | None = setting(
        None,
        "Names by which clients may call this server, beside addresses, localhost and this "
        "machine's own, such as a.org,b.org, or * for all.",
    )
    allowed_origins: str | None = setting(
        None,
        "Origins of pages elsewhere whose scripts may use the server (CORS), such as "
        "https://a.org,https://b.org, or * for all; default: none.",
    )
    allowed_methods: str = setting("*", "Methods that such scripts may use, such as GET,POST.")
    allowed_headers: str = setting("*", "Headers that such scripts may send.")
    allow_credentials: bool = setting(False, "Let such scripts send cookies and passwords.")
    ssl_certfile: str | None = setting(None, "Certificate for HTTPS, in PEM; default: HTTP.")
    ssl_keyfile: str | None = setting(None, "Key of the certificate, if it is in another file.")
    max_connections: int = setting(2048, "Connections at the same time.", lowest=1)
    max_header_bytes: int = setting(32 << 10, "Largest headers of a request, in bytes.", lowest=1)
    max_body_bytes: int = setting(4 << 20, "Largest request body, in bytes.", lowest=1)
    header_timeout: float = setting(
        10.0, "Seconds that a request's headers may take to come.", lowest=0.001
    )
    body_timeout: float = setting(60.0, "Seconds that a body may take to come.", lowest=0.001)
    request_timeout: float = setting(
        600.0, "Seconds that an answer may take which is not streamed.", lowest=0
    )
    access_log: bool = setting(False, "Print a line for each answer.")
    otlp_traces_endpoint: str | None = setting(
        None,
        "URL of an OpenTelemetry collector that gets a trace of each request, such as "
        "http://localhost:4318/v1/traces.",
    )
    grace_period: float = setting(
        30.0, "Seconds that running answers have to finish after SIGTERM.", lowest=0
    )

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("allowed_hosts", "allowed_origins", "allowed_methods", "allowed_headers"):
            split_names(name, getattr(self, name))

    def key(self) -> str | None:
        """The API key, if clients need one. Raises ServingError for a file that cannot be read, and
        for a key that no header can carry."""
        if self.api_key is not None and self.api_key_file is not None:
            raise ServingError("--api_key and --api_key_file give two keys: leave one of them out")
        key, source = self.api_key, "--api_key"
        if self.api_key_file is not None:
            source = f"--api_key_file={self.api_key_file}"
            try:
                key = Path(self.api_key_file).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ServingError(f"{source} cannot be read: {error}") from error
        if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
            raise ServingError(f"{source}: a key is one word of printable ASCII characters")
        return key

    def check_certificate(self) -> None:
        """Raises ServingError for a certificate that HTTPS cannot use."""
        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None:
                raise ServingError("--ssl_keyfile needs --ssl_certfile")
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.ssl_certfile, self.ssl_keyfile
            )
        except OSError as error:  # what ssl raises is one, too
            raise ServingError(
                f"--ssl_certfile={self.ssl_certfile} and --ssl_keyfile={self.ssl_keyfile} are no "
                f"certificate and its key: {error}"
            ) from error


def split_names(name: str, text: str | None) -> list[str]:
    """ "a,b", or vLLM's '["a", "b"]' -> ["a", "b"]. Raises ServingError for JSON of anything
    else."""
    if text is None or not text.lstrip().startswith("["):
        return [part.strip() for part in (text or "").split(",") if part.strip()]
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ServingError(f'--{name}={text}: write a,b or ["a", "b"]')
    return values


def sizes(name: str, text: str) -> tuple[int, ...]:
    """ "1,4,16" -> (1, 4, 16). Raises ServingError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ServingError(f"--{name}={text}: write whole numbers with commas, such as 1,4,16")
    numbers = tuple(map(int, parts))
    if numbers[0] < 1 or list(numbers) != sorted(set(numbers)):
        raise ServingError(f"--{name}={text}: write positive numbers in ascending order")
    return numbers
