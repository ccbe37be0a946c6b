"""How long a step of each bucket takes on a machine, as `neuronjax sweep` says."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from launch.quantisation.settings import WEIGHTS
from launch.run_file import write_json
from launch.serving.errors import ServingError
from launch.serving.scheduler.buckets import Bucket
from launch.settings import setting
from launch.workloads import MODELS

NARROW = ("weights", "cache_dtype")
WORKLOAD = "launch.serving.virtual.workloads:serving_step"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What runs where."""

    model: str = setting("70b", "Model of launch.workloads.", choices=MODELS)
    target: str = setting("trn2.48xlarge", "Instance, as in NEURONJAX_TARGET.")
    mesh: str = setting("model=64", "Mesh of the instance's cores.")
    dtype: str = setting(
        "bfloat16", "Type of activations, and of weights and cache unless other flags name theirs."
    )
    weights: str | None = setting(
        None, "Format of quantized weights, as in launch.quantise.", choices=WEIGHTS
    )
    cache_dtype: str | None = setting(None, "Type of keys and values, such as float8_e4m3.")


class Program(NamedTuple):
    """What is timed in all of its buckets."""

    machine: Machine
    block_size: int
    blocks: int
    name: str = "step"  # of `workloads.PROGRAMS`
    guesses: int = 0
    adapters: int = 0
    lora_rank: int = 0


Estimate = Callable[[Program, Items[Bucket]], Iterator[tuple[Bucket, float]]]
"""Buckets with their seconds, as they are known."""


class Timings:
    """Seconds of buckets on machines, kept in a file if one is given."""

    def __init__(self, file: Path | None = None) -> None:
        """Raises ServingError for a file that is not of this class."""
        self._file = file
        self._known: dict[Program, dict[Bucket, float]] = {}
        if file is not None and file.exists():
            self._known = _read(file)

    def of(
        self,
        program: Program,
        buckets: Iterable[Bucket],
        on_bucket: Callable[[Bucket], None] = lambda bucket: None,
        estimate: Estimate | None = None,
    ) -> Mapping[Bucket, float]:
        """The seconds of a program in all of these buckets; those that are not known are estimated,
        and saved as they come.

        Raises ServingError with the estimate's words if one is impossible, or does not fit the
        memory.
        """
        known = self._known.setdefault(program, {})
        left = []
        for bucket in buckets:
            if bucket in known:
                on_bucket(bucket)
            else:
                left.append(bucket)
        for bucket, seconds in (estimate or measure)(program, left):
            known[bucket] = seconds
            self._save()
            on_bucket(bucket)
        return known

    def _save(self) -> None:
        if self._file is None:
            return
        entries = [
            {
                **program._asdict(),
                "machine": asdict(program.machine),
                "seconds": [[*bucket, seconds] for bucket, seconds in known.items()],
            }
            for program, known in self._known.items()
        ]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._file, {"programs": entries})


def _read(file: Path) -> dict[Program, dict[Bucket, float]]:
    try:
        return dict(map(_entry, json.loads(file.read_text())["programs"]))
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise ServingError(
            f"{file} holds no times of buckets ({error!r}). Give another --timings."
        ) from error


def _entry(entry: Mapping[str, Any]) -> tuple[Program, dict[Bucket, float]]:
    values = {**entry, "machine": Machine(**entry["machine"])}
    seconds = values.pop("seconds")
    return Program(**values), {Bucket(*map(int, row[:3])): float(row[3]) for row in seconds}


def measure(program: Program, buckets: Items[Bucket]) -> Iterator[tuple[Bucket, float]]:
    """Estimates every bucket. Raises ServingError with the estimate's words if one is impossible,
    or does not fit the memory."""
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for bucket in buckets:
        rows[bucket.tokens, bucket.blocks].append(bucket.rows)
    for (tokens, blocks), batches in rows.items():
        for point in _sweep(program, tokens, blocks, batches):
            bucket = Bucket(point["batch"], tokens, blocks)
            yield bucket, seconds_of(point, bucket)


def _sweep(program: Program, tokens: int, blocks: int, batches: list[int]) -> list[dict[str, Any]]:
    machine = program.machine
    settings = {
        "program": program.name,
        "model": machine.model,
        "tokens": tokens,
        "context": blocks * program.block_size,
        "block_size": program.block_size,
        "blocks": program.blocks,
        **{name: dtype for name in NARROW if (dtype := getattr(machine, name)) is not None},
        **{name: getattr(program, name) for name in ("guesses", "adapters", "lora_rank")},
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "neuronjax.cli", "sweep", WORKLOAD),
            *(f"--targets={machine.target}", f"--mesh={machine.mesh}", "--format=json"),
            f"--dtype={machine.dtype}",
            f"--batch={','.join(map(str, batches))}",
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        points: list[dict[str, Any]] = json.loads(done.stdout)["points"]
    except ValueError as error:
        raise ServingError(f"no estimate for {machine}: {done.stderr.strip()}") from error
    return points


def seconds_of(point: Mapping[str, Any], bucket: Bucket) -> float:
    """The time of a point of a sweep. Raises ServingError if there is none, or no memory."""
    estimate = point["estimate"]
    if estimate is None:
        raise ServingError(f"the bucket of {bucket} cannot be estimated: {point['error']}")
    needed, capacity = sum(estimate["memory"].values()), estimate["capacity_bytes"]
    if needed > capacity:
        raise ServingError(
            f"the bucket of {bucket} needs {needed / 2**30:.1f} GiB on a core, of which there are "
            f"{capacity / 2**30:.1f}: {estimate['memory']}. Lower --num_blocks or the bucket, or "
            "split the model further."
        )
    return float(estimate["step_ns"]) * 1e-9
