"""One place that all a run has to tell goes through."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from launch.monitoring.metrics_file import MetricsFile
from launch.monitoring.settings import MonitorSettings
from launch.monitoring.speed import Speed
from launch.monitoring.step_profile import StepProfile
from launch.monitoring.summary import Summary
from launch.monitoring.tensorboard import FOLDER, TensorBoardFile
from launch.simulated import DeviceTime

METRICS = "metrics.jsonl"
PROFILE = "profile"


class Monitor:
    """The bar, the metrics' files, profiles and the summary of a run in `directory`.

    Steps are numbered from 1; `last_step` is the one after which the run goes on. Raises
    OutputError where nothing can be written. `memory` is what the summary says of a core's. With
    `quiet`, as in all processes but one, nothing is written and nothing is printed.
    """

    def __init__(
        self,
        directory: Path,
        settings: MonitorSettings,
        *,
        last_step: int,
        steps: int,
        tokens_per_step: int,
        on_device: DeviceTime | None,
        memory: str = "",
        quiet: bool = False,
    ) -> None:
        self._files: list[MetricsFile | TensorBoardFile] = []
        if settings.tensorboard and not quiet:
            self._files.append(TensorBoardFile(directory / FOLDER, last_step))
        if not quiet:
            self._files.append(MetricsFile(directory / METRICS, last_step))
        self._speed = Speed(settings.metrics_window_size, tokens_per_step, on_device)
        self._profile = StepProfile(range(0) if quiet else settings.profiled, directory / PROFILE)
        self._summary = Summary(last_step, tokens_per_step, on_device, memory)
        self._bar = tqdm(
            total=steps,
            initial=last_step,
            unit="step",
            dynamic_ncols=True,
            delay=1e-9,
            disable=quiet,
        )

    @contextmanager
    def step(self, step: int) -> Iterator[dict[str, float]]:
        """Around a step; its loss and other numbers go into the dictionary."""
        values: dict[str, float] = {}
        self._profile.before(step)
        began = time.perf_counter()
        yield values
        self._speed.add(time.perf_counter() - began)
        self._profile.after(step)
        self._summary.add_step(values["loss"])
        self.write(step, values | self._speed.values())
        self._bar.set_postfix_str(f"loss {values['loss']:.3f}, {self._speed}")
        self._bar.update()

    def write(self, step: int, record: Mapping[str, float | str]) -> None:
        """Adds a record to the metrics."""
        for file in self._files:
            file.write(step=step, **record)

    def evaluation(
        self, step: int, loss: float, unit: str, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Tells the loss on held-out data, which is in `unit`, and other means."""
        means = metrics or {}
        named = {f"held_out_{name}": mean for name, mean in means.items()}
        self.write(step, {"held_out_loss": loss, **named})
        self._summary.add_evaluation(loss, unit)
        others = "".join(f", {name} {mean:.4f}" for name, mean in means.items())
        self.tell(f"step {step}: held-out loss {loss:.4f} {unit}{others}")

    def sample(self, step: int, text: str) -> None:
        """Tells what the model writes."""
        self.write(step, {"sample": text})
        self.tell(f"step {step} writes: {text}")

    def tell(self, message: str) -> None:
        """A line of the program's output, beside the bar."""
        if not self._bar.disable:
            self._bar.write(message)

    def summary(self) -> str:
        """What the run came to, as a table."""
        return str(self._summary)

    def close(self) -> None:
        """Ends the bar and the files."""
        self._bar.close()
        self._profile.close()
        for file in self._files:
            file.close()
