"""What the person who starts a run wants to see of it."""

import re
from dataclasses import dataclass

from launch.errors import SettingsError
from launch.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class MonitorSettings:
    """What is shown and written. Raises SettingsError for what cannot be."""

    tensorboard: bool = setting(
        False, "Write TensorBoard event files to the run's folder `tensorboard`."
    )
    metrics_window_size: int = setting(
        50, "Number of steps to average throughput and MFU over.", lowest=1
    )
    sample_every: int | None = setting(
        None, "Steps between samples of generated text; default: none.", lowest=1
    )
    sample_prompt: str = setting("The ", "Prompt for samples of generated text.")
    sample_tokens: int = setting(100, "Length of a sample, in tokens.", lowest=1)
    device_time: bool = setting(
        True,
        "Show the time of a step on an emulated device; its program is lowered once at the start.",
    )
    profile_steps: str | None = setting(None, "Steps to profile, such as 10:12 for steps 10 to 12.")

    def __post_init__(self) -> None:
        check_settings(self)
        _ = self.profiled

    @property
    def profiled(self) -> range:
        """The numbers of the steps to profile."""
        if self.profile_steps is None:
            return range(0)
        match = re.fullmatch(r"(\d+)(?::(\d+))?", self.profile_steps)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 0 < first <= last:
            raise SettingsError(
                f"--profile_steps={self.profile_steps} cannot be read. Write the first and last "
                "step, counted from 1, such as 10:12."
            )
        return range(first, last + 1)
