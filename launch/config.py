"""What a training run is, besides its model."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launch.data.config import DataConfig


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
    learning_rate: float = 3e-3  # at the end of the warm-up
    warmup_steps: int = 50  # linear; then a cosine to a tenth at the last step
    weight_decay: float = 0.1  # on matrices only
    clip_norm: float = 1.0  # largest global norm of the gradient
    checkpoint_every: int = 100  # steps between checkpoints
    keep: int = 3  # newest checkpoints that are kept
    keep_every: int | None = None  # checkpoints of multiples of so many steps are kept too
    eval_every: int = 100  # steps between evaluations on held-out text

    def optimizer_settings(self) -> dict[str, Any]:
        """The settings that shape the updates; a resumed run may change them."""
        names = ("steps", "learning_rate", "warmup_steps", "weight_decay", "clip_norm")
        return {name: value for name, value in asdict(self).items() if name in names}
