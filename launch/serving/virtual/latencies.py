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
        self._new: list[np.ndarray] = []  # not yet in the bins: many at once cost less

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Latencies) and np.array_equal(self._counts(), other._counts())

    __hash__ = None  # type: ignore[assignment]

    @property
    def count(self) -> int:
        """How many were added."""
        return int(self._counts().sum())

    def _counts(self) -> np.ndarray:
        """Per bin, of all that were added."""
        if self._new:
            bins = _bins_of(np.concatenate(self._new))
            self._new.clear()
            self._bins += np.bincount(bins, minlength=len(self._bins))
        return self._bins

    def add(self, seconds: np.ndarray) -> None:
        """Adds latencies [n]."""
        self._new.append(seconds)
        if len(self._new) == _AT_ONCE:
            self._counts()

    def add_many(self, seconds: np.ndarray, count: int) -> None:
        """Adds each of these latencies [n] so many times."""
        np.add.at(self._bins, _bins_of(seconds), count)

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
