"""How fast a run is: here, and on the device that is emulated."""

from collections import deque

from launch.simulated import DeviceTime


class Speed:
    """Throughput and MFU over the last steps."""

    def __init__(self, window: int, tokens_per_step: int, on_device: DeviceTime | None) -> None:
        self._seconds: deque[float] = deque(maxlen=window)
        self._tokens_per_step = tokens_per_step
        self._on_device = on_device

    def add(self, seconds: float) -> None:
        """Takes the time of another step."""
        self._seconds.append(seconds)

    @property
    def tokens_per_second(self) -> float:
        """Here, over the steps of the window."""
        return self._tokens_per_step * len(self._seconds) / sum(self._seconds)

    def values(self) -> dict[str, float]:
        """What metrics say of the steps of the window. The device's numbers are there where the
        platform simulates it: `mfu` is the share of its peak that the run reaches here."""
        values = {"tokens_per_second": round(self.tokens_per_second, 1)}
        if self._on_device is None:
            return values
        here = self._tokens_per_step / self.tokens_per_second
        return values | {
            "mfu": _round_share(self._on_device.mfu * self._on_device.seconds / here),
            "device_seconds": self._on_device.seconds,
            "device_tokens_per_second": round(self._tokens_per_step / self._on_device.seconds, 1),
            "device_mfu": _round_share(self._on_device.mfu),
        }

    def __str__(self) -> str:
        on_device = f"; {self._on_device}" if self._on_device else ""
        return f"{self.tokens_per_second:.0f} tokens/s{on_device}"


def _round_share(share: float) -> float:
    return float(f"{share:.4g}")
