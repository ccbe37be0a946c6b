"""What a training run is, besides its model."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launch.data.config import DataConfig
from launch.monitoring import MonitorSettings
from launch.training.optimizers import OptimizerSettings
from launch.training.precision import PrecisionSettings
from launch.training.schedules import ScheduleSettings


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Every setting of a training run."""

    checkpoint_dir: Path  # the run directory: checkpoints and metrics.jsonl
    data: DataConfig = field(default_factory=DataConfig)
    mesh: str | None = None  # such as "data=4,model=2"; None = fitted to the devices
    seq_len: int | None = None  # training window, in tokens; None = the model's context
    steps: int = 400  # optimizer steps
    batch_size: int = 32  # sequences per step, over all devices
    seed: int = 0  # of the initial weights and of the order of the data
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    precision: PrecisionSettings = field(default_factory=PrecisionSettings)
    clip_norm: float = 1.0  # largest global norm of the gradient
    checkpoint_every: int = 100  # steps between checkpoints
    keep: int = 3  # newest checkpoints that are kept
    keep_every: int | None = None  # checkpoints of multiples of so many steps are kept too
    eval_every: int = 100  # steps between evaluations on held-out text
    monitor: MonitorSettings = field(default_factory=MonitorSettings)

    def optimizer_settings(self) -> dict[str, Any]:
        """The settings that shape the updates; a resumed run may change them."""
        records = (self.schedule, self.optimizer, self.precision)
        named = {name: value for record in records for name, value in asdict(record).items()}
        return {"steps": self.steps, "clip_norm": self.clip_norm, **named}
