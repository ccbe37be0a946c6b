"""The time of devices that are simulated."""

from collections.abc import Callable


class DeviceClock:
    """Steps run one after the other; while there are none, the clock stands."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds: the end of the last step whose tokens are known
        self._free = 0.0  # when the last step that was handed over ends

    def begin(self, seconds: float) -> float:
        """Hands a step over; when it ends."""
        self._free = max(self.now, self._free) + seconds
        return self._free

    def reach(self, moment: float) -> None:
        """The tokens of the step that ends then are known, or nothing happens before."""
        self.now = max(self.now, moment)


class Carrier:
    """Carries one text after the other from one device to another."""

    def __init__(self, moving: Callable[[int], float]) -> None:
        """So many blocks take `moving` seconds."""
        self._moving, self._free = moving, 0.0

    def carried(self, blocks: int, now: float) -> float:
        """When so many blocks that are ready now have arrived."""
        if not blocks:
            return now
        self._free = max(now, self._free) + self._moving(blocks)
        return self._free
