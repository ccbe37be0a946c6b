"""What a run came to."""

import time
from datetime import timedelta

from rich import box
from rich.console import Console
from rich.table import Table

from launch.simulated import DeviceTime


class Summary:
    """Collects what the table at the end of a run says."""

    def __init__(
        self, last_step: int, tokens_per_step: int, on_device: DeviceTime | None, memory: str = ""
    ) -> None:
        self._before, self._memory = last_step, memory
        self._tokens_per_step = tokens_per_step
        self._on_device = on_device
        self._losses: list[float] = []
        self._evaluations: list[str] = []
        self._began = time.perf_counter()

    def add_step(self, loss: float) -> None:
        """Takes the loss of another step."""
        self._losses.append(loss)

    def add_evaluation(self, loss: float, unit: str) -> None:
        """Takes another loss on held-out data, which is in `unit`."""
        self._evaluations.append(f"{loss:.4f} {unit}")

    def rows(self) -> dict[str, str]:
        """Returns the lines of the summary of a run, by their names."""
        count = len(self._losses)
        seconds = time.perf_counter() - self._began
        tokens = count * self._tokens_per_step
        rows = {"steps": f"{count:,} (from {self._before} to {self._before + count})"}
        if count:
            rows["tokens"] = f"{tokens:,}"
            rows["loss"] = f"{self._losses[0]:.4f} at the start, {self._losses[-1]:.4f} at the end"
        if self._evaluations:
            rows["held-out loss"] = self._evaluations[-1]
        rows["time on the host"] = f"{_text(seconds)}, {tokens / seconds:,.0f} tokens/s overall"
        if self._on_device is not None:
            rows["step on the device"] = str(self._on_device).replace(" on the device", "")
            if self._on_device.assumed:
                rows["assumed of it"] = self._on_device.assumed
            rows["steps on the device"] = (
                f"{_text(count * self._on_device.seconds)}, "
                f"{self._tokens_per_step / self._on_device.seconds:,.0f} tokens/s"
            )
        if self._memory:
            rows["memory per core"] = self._memory
        return rows

    def __str__(self) -> str:
        table = Table(box=box.SIMPLE_HEAD, show_header=False)
        for name, value in self.rows().items():
            table.add_row(name, value)
        console = Console(width=100, color_system=None)
        with console.capture() as capture:
            console.print(table)
        return "\n".join(line.rstrip() for line in capture.get().splitlines() if line.strip())


def _text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return str(timedelta(seconds=round(seconds)))
