"""Small runs of the programs, in this process and in others."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from launch.config import TrainConfig
from launch.data.config import DataConfig
from launch.monitoring.metrics_file import read_metrics
from launch.source import byte_level
from launch.training.objectives import LabelLoss
from launch.training.optimizers import OptimizerSettings
from launch.training.parallelism import Parallelism
from launch.training.precision import PrecisionSettings
from launch.training.schedules import ScheduleSettings
from models.decoder.config import DecoderConfig
from tests import forked

ROOT = Path(__file__).parents[2]
CONFIG = DecoderConfig(
    num_layers=1, dim=16, hidden_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, max_seq_len=32
)
SOURCE = byte_level(CONFIG)
MODEL = SOURCE.model
RECORDS: dict[str, Any] = {
    "data": DataConfig,
    "schedule": ScheduleSettings,
    "optimizer": OptimizerSettings,
    "precision": PrecisionSettings,
    "parallelism": Parallelism,
    "of_labels": LabelLoss,
}
MODEL_FLAGS = [
    "--num_layers=1",
    "--dim=16",
    "--hidden_dim=32",
    "--head_dim=8",
    "--max_seq_len=32",
    "--batch_size=8",
    "--warmup_steps=2",
]


def config(directory: Path, **changes: object) -> TrainConfig:
    """A short run; `changes` are fields of TrainConfig or of its records."""
    settings = {"batch_size": 8, "steps": 4, "checkpoint_every": 2, "warmup_steps": 2, **changes}
    records = {}
    for name, record in RECORDS.items():
        own = {f.name: settings.pop(f.name) for f in fields(record) if f.name in settings}
        records[name] = record(**own)
    return TrainConfig(checkpoint_dir=directory, **records, **settings)  # type: ignore[arg-type]


def environment(devices: int) -> dict[str, str]:
    """Variables for that many CPU devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def run(program: str, *flags: str, devices: int = 4) -> "subprocess.CompletedProcess[str]":
    """As `start`, when it has ended, in a process that was forked."""
    env = {**os.environ, **environment(devices)}
    return forked.run(["-m", f"launch.{program}", *flags], env=env, timeout=300)


def start(program: str, *flags: str, devices: int = 4) -> "subprocess.Popen[str]":
    """`python -m launch.<program>` on that many CPU devices."""
    return subprocess.Popen(
        [sys.executable, "-m", f"launch.{program}", *flags],
        cwd=ROOT,
        env={**os.environ, **environment(devices)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def losses(directory: Path) -> list[tuple[int, float]]:
    """(step, loss) of every step in the metrics, in order, at full precision."""
    records = read_metrics(directory / "metrics.jsonl")
    return [(record["step"], record["loss"]) for record in records if "loss" in record]
