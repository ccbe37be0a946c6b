"""How long a step of each bucket takes on a machine, as `neuronjax sweep` says."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launch.quantisation.settings import WEIGHTS
from launch.serving.errors import ServingError
from launch.serving.scheduler.buckets import Bucket
from launch.serving.scheduler.limits import SchedulerLimits
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


@dataclass(frozen=True)
class Timings:
    """Seconds of every bucket of a model on a machine."""

    machine: Machine
    block_size: int
    blocks: int
    seconds: Mapping[Bucket, float]

    def __call__(self, bucket: Bucket) -> float:
        """Seconds of one step."""
        return self.seconds[bucket]

    def fits(self, machine: Machine, limits: SchedulerLimits) -> bool:
        """Whether these are times of that machine, for all of those buckets."""
        same = (self.machine, self.block_size, self.blocks) == (
            machine,
            limits.block_size,
            limits.blocks,
        )
        return same and set(limits.buckets) <= set(self.seconds)

    def save(self, file: Path) -> None:
        """As JSON."""
        rows = [[*bucket, seconds] for bucket, seconds in self.seconds.items()]
        fields = {"block_size": self.block_size, "blocks": self.blocks, "seconds": rows}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"machine": asdict(self.machine), **fields}, indent=0))

    @classmethod
    def read(cls, file: Path) -> "Timings":
        """Raises ServingError for a file that `save` has not written."""
        try:
            values = json.loads(file.read_text())
            seconds = {Bucket(*map(int, row[:3])): float(row[3]) for row in values["seconds"]}
            machine = Machine(**values["machine"])
            return cls(machine, int(values["block_size"]), int(values["blocks"]), seconds)
        except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
            raise ServingError(
                f"{file} holds no times of buckets ({error!r}). Give another --timings."
            ) from error


def measure(
    machine: Machine,
    limits: SchedulerLimits,
    on_bucket: Callable[[Bucket], None] = lambda bucket: None,
) -> Timings:
    """Estimates every bucket. Raises ServingError with the estimate's words if one is impossible,
    or does not fit the memory."""
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for bucket in limits.buckets:
        rows[bucket.tokens, bucket.blocks].append(bucket.rows)
    seconds: dict[Bucket, float] = {}
    for (tokens, blocks), batches in rows.items():
        for point in _sweep(machine, limits, tokens, blocks, batches):
            bucket = Bucket(point["batch"], tokens, blocks)
            seconds[bucket] = seconds_of(point, bucket)
            on_bucket(bucket)
    return Timings(machine, limits.block_size, limits.blocks, seconds)


def _sweep(
    machine: Machine, limits: SchedulerLimits, tokens: int, blocks: int, batches: list[int]
) -> list[dict[str, Any]]:
    settings = {
        "model": machine.model,
        "tokens": tokens,
        "context": blocks * limits.block_size,
        "block_size": limits.block_size,
        "blocks": limits.blocks,
        **{name: dtype for name in NARROW if (dtype := getattr(machine, name)) is not None},
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
