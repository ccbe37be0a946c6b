"""Loading a checkpoint of a billion parameters, beside reading the same files with safetensors."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
from safetensors import safe_open

from models import pretrained
from models.decoder.config import DecoderConfig
from models.decoder.families import llama_json
from models.weights.fields import Fields
from models.weights.save import save_checkpoint

BILLION = DecoderConfig(
    vocab_size=32_000,
    num_layers=22,
    dim=2048,
    hidden_dim=5632,
    num_heads=32,
    num_kv_heads=4,
    head_dim=64,
    max_seq_len=2048,
    tie_embeddings=False,
    dtype="bfloat16",
    param_dtype="bfloat16",
)
"""The dimensions of TinyLlama 1.1B."""

FILES = 4
MODEL_AXIS = 4  # devices that the weights are split over, none of them twice
_SAMPLING_SECONDS = 0.002


def write_random(directory: Path, config: DecoderConfig = BILLION) -> int:
    """Writes a checkpoint of random BF16 weights in several files; returns its size in bytes."""
    fields = Fields(llama_json(config), "the benchmark")
    described = pretrained.describe_fields(fields)
    _, abstract = described.architecture.abstract(described.config)
    random = np.random.default_rng(0)
    bits_of_one = int(np.asarray(1, ml_dtypes.bfloat16).view(np.uint16))  # numbers between 0 and 1
    parameters = {
        name: random.integers(0, bits_of_one, leaf.shape, np.uint16).view(ml_dtypes.bfloat16)
        for name, leaf in abstract.items()
    }
    size = sum(parameter.nbytes for parameter in parameters.values())
    largest = max(parameter.nbytes for parameter in parameters.values())
    save_checkpoint(
        directory,
        {**fields.values, "architectures": [described.architecture.name], "dtype": "bfloat16"},
        described.architecture.keys(described.config),
        parameters,
        shard_bytes=size // FILES + largest,
    )
    return size


@contextmanager
def random_checkpoint() -> Iterator[Path]:
    """The directory of a random checkpoint, as long as the context lasts."""
    with tempfile.TemporaryDirectory() as name:
        write_random(Path(name))
        yield Path(name)


def load(directory: Path, devices: Sequence[jax.Device]) -> pretrained.Pretrained:
    """The model of the directory, its weights split over the devices."""
    mesh = jax.make_mesh((1, len(devices)), ("data", "model"), devices=devices)
    return pretrained.load(directory, mesh)


def read_plainly(directory: Path, devices: Sequence[jax.Device] = ()) -> list[np.ndarray]:
    """Every tensor of the directory's files, read with safetensors into NumPy."""
    tensors = []
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="np") as stored:
            tensors += [stored.get_tensor(name) for name in stored.keys()]  # noqa: SIM118
    return tensors


SIDES: Mapping[str, Callable[[Path, Sequence[jax.Device]], object]] = {
    "load": load,
    "read": read_plainly,
}
"""What is compared."""


def touch_memory(nbytes: int) -> None:
    """Takes so much memory and gives it back.

    The host of a virtual machine takes back what lies idle there, and who touches it next waits,
    up to three times as long as everything else takes.
    """
    _ = b"1" * nbytes


def peak_memory(function: Callable[[], object]) -> dict[str, float]:
    """Bytes by which this process's memory grows at most while the function runs.

    "resident" counts pages of files that are mapped too, "anonymous" does not; it is sampled.
    Garbage of before is collected first: it would be missing from what grows. `ru_maxrss` would be
    wrong here: a process begins with that of the one which started it.
    """
    gc.collect()
    started, ended = _anonymous(), threading.Event()
    before, seen = _resident(), [started]

    def watch() -> None:
        while not ended.wait(_SAMPLING_SECONDS):
            seen.append(_anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = function()
        seen.append(_anonymous())
        del result
    finally:
        ended.set()
        watcher.join()
    return {
        "resident": _status("VmHWM") - before,
        "anonymous": max(seen) - started,
    }


def _resident() -> int:
    return _status("VmRSS")


def _anonymous() -> int:
    return _status("RssAnon")


def _status(field: str) -> int:
    """Bytes, of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024
