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
        """Sets the clock to the end of a step, or to the next moment at which anything happens."""
        self.now = max(self.now, moment)


class Carrier:
    """The link from one device to another, which carries one text after the other."""

    def __init__(self, moving: Callable[[int], float]) -> None:
        """`moving` gives the seconds that a number of blocks takes."""
        self._moving, self._free = moving, 0.0

    def carried(self, blocks: int, now: float) -> float:
        """The time at which so many blocks that are ready `now` have arrived, in seconds."""
        if not blocks:
            return now
        self._free = max(now, self._free) + self._moving(blocks)
        return self._free
