"""Many latencies in little memory."""

import numpy as np

_LOWEST, _HIGHEST = 1e-6, 1e5  # seconds; what lies beyond counts as these
_AT_ONCE = 1024  # arrays
_PER_DECADE = 1000  # bins: a quantile is off by 0.12 % at most


class Latencies:
    """A histogram over the logarithm of latencies in seconds."""

    def __init__(self) -> None:
        decades = round(np.log10(_HIGHEST / _LOWEST))
        self._bins = np.zeros(decades * _PER_DECADE + 1, np.int64)
        # Not yet in the bins, and how often each: many at once cost less.
        self._new: list[tuple[np.ndarray, int]] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Latencies) and np.array_equal(self._counts(), other._counts())

    __hash__ = None  # type: ignore[assignment]

    @property
    def count(self) -> int:
        """The number of latencies that were added."""
        return int(self._counts().sum())

    def _counts(self) -> np.ndarray:
        """Per bin, of all that were added."""
        if self._new:
            parts, times = zip(*self._new, strict=True)
            self._new.clear()
            np.add.at(
                self._bins,
                _bins_of(np.concatenate(parts)),
                np.repeat(times, [len(part) for part in parts]),
            )
        return self._bins

    def add(self, seconds: np.ndarray, times: int = 1) -> None:
        """Adds each of these latencies [n] so many times."""
        self._new.append((seconds, times))
        if len(self._new) == _AT_ONCE:
            self._counts()

    def quantile(self, share: float) -> float:
        """The smallest latency that so many are not above; NaN without any."""
        totals = np.cumsum(self._counts())
        if not totals[-1]:
            return float("nan")
        index = np.searchsorted(totals, share * totals[-1])
        return float(_LOWEST * 10 ** (index / _PER_DECADE))


def _bins_of(seconds: np.ndarray) -> np.ndarray:
    scale = np.log10(np.clip(seconds, _LOWEST, _HIGHEST) / _LOWEST)
    bins: np.ndarray = np.rint(scale * _PER_DECADE).astype(np.int64)
    return bins
