"""The time of a device that is simulated."""


class DeviceClock:
    """Steps run one after the other; while there are none, the clock stands."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds: the end of the last step whose tokens are known
        self._free = 0.0  # when the last step that was handed over ends

    def begin(self, seconds: float) -> float:
        """Hands a step over; when it ends."""
        self._free = max(self.now, self._free) + seconds
        return self._free

    def reach(self, end: float) -> None:
        """The tokens of the step that ends then are known."""
        self.now = end
