"""What the programs of a step take on a device whose time is simulated."""

from typing import Any

from launch.serving.errors import ServingError
from launch.simulated import device_time


class Meter:
    """Adds up what runs; seconds are None unless they are wanted."""

    def __init__(self, *, timed: bool = False) -> None:
        self._timed = timed
        self._known: dict[Any, float] = {}  # by program
        self.seconds: float | None = None

    def start(self) -> None:
        """Begins to add up the programs of a step."""
        self.seconds = 0.0 if self._timed else None

    def count(self, name: object, program: Any) -> None:
        """Adds a program that runs. Raises ServingError if the platform does not simulate it."""
        if self.seconds is None:
            return
        seconds = self._known.get(program)
        if seconds is None:
            seconds = self._known[program] = seconds_of(name, program)
        self.seconds += seconds


def seconds_of(name: object, program: Any) -> float:
    """The seconds that a program takes on the device. Raises ServingError if the platform does not
    simulate it."""
    time = device_time(program)
    if time is None:
        raise ServingError(
            f"--clock=device: the platform does not say what the program {name} takes on a "
            "device. Use JAX_PLATFORMS=neuron with NEURONJAX_SIMULATE=1, or --clock=host"
        )
    return time.seconds
