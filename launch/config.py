"""The settings of a training run, apart from its model."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launch.data.config import DataConfig
from launch.monitoring import MonitorSettings
from launch.settings import setting
from launch.training.dropout import DropoutSettings
from launch.training.kernels import COMPILER, KERNELS
from launch.training.objectives import LabelLoss
from launch.training.optimizers import OptimizerSettings
from launch.training.parallelism import Parallelism
from launch.training.precision import PrecisionSettings
from launch.training.router_losses import RouterSettings
from launch.training.schedules import ScheduleSettings


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Every setting of a training run."""

    checkpoint_dir: Path  # the run directory: checkpoints and metrics.jsonl
    data: DataConfig = field(default_factory=DataConfig)
    mesh: str | None = setting(
        None, "Device mesh such as data=4,model=2; default: fitted to the devices."
    )
    seq_len: int | None = setting(
        None, "Training sequence length, in tokens; default: the model's context length.", lowest=1
    )
    steps: int = setting(400, "Optimizer steps.", lowest=1)
    num_train_epochs: float | None = setting(
        None, "Number of passes through the data, instead of a number of steps.", lowest=0.0
    )
    batch_size: int = setting(32, "Sequences per step, over all devices.", lowest=1)
    expert_capacity_factor: float | None = setting(
        None,
        "Capacity of an expert, as a multiple of its even share of a row's tokens; "
        "tokens beyond it skip the expert. Default: no limit (dropless).",
        lowest=0.0,
    )
    seed: int = setting(0, "Seed of the initial weights and of the data order.", lowest=0)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    precision: PrecisionSettings = field(default_factory=PrecisionSettings)
    parallelism: Parallelism = field(default_factory=Parallelism)
    of_labels: LabelLoss = field(default_factory=LabelLoss)
    router: RouterSettings = field(default_factory=RouterSettings)
    dropout: DropoutSettings = field(default_factory=DropoutSettings)
    kernels: str = setting(
        COMPILER,
        "What computes attention, SwiGLU, norms and losses: the compiler, or NKI kernels.",
        choices=KERNELS,
    )
    check_memory: bool = setting(
        True, "Refuse to start a step that does not fit into the device's memory."
    )
    clip_norm: float = setting(
        1.0,
        "Largest global gradient norm; larger gradients are scaled down. 0: no limit.",
        lowest=0.0,
    )
    checkpoint_every: int = setting(100, "Steps between checkpoints.", lowest=1)
    keep: int = setting(3, "How many of the latest checkpoints to keep.", lowest=1)
    keep_every: int | None = setting(
        None, "Steps between checkpoints that are kept permanently.", lowest=1
    )
    eval_every: int = setting(100, "Steps between evaluations on held-out data.", lowest=1)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)

    def optimizer_settings(self) -> dict[str, Any]:
        """The settings that affect the updates; a resumed run may change them."""
        records = (self.schedule, self.optimizer, self.precision, self.of_labels, self.dropout)
        named = {name: value for record in records for name, value in asdict(record).items()}
        return {"steps": self.steps, "clip_norm": self.clip_norm, **named}
