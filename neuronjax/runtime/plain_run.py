"""The short way to run a program on one core without checks, donations or faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neuronjax.host.client import HostExecutable
from neuronjax.runtime.memory import HbmLedger


class PlainRun:
    """The short way to run a program.

    The caller calls ``claim``, then ``start`` with the arguments' arrays and
    ``consume_with_handlers(handlers)`` of its result, and ``disclaim`` if either of them raised.
    """

    def __init__(
        self,
        host: HostExecutable,
        start: Callable[[list[Any]], Any],
        arguments: int,
        result_bytes: int,
        needed: int,
        ledger: HbmLedger,
        observers: Sequence[Any],
    ) -> None:
        self.arguments = arguments
        self.start = start
        self.handlers = host.handlers
        self.result_bytes = result_bytes
        self.needed = needed
        """Bytes with the temporaries of a run."""
        self._cores = host.placement.ids
        self._ledger = ledger
        self.observers = observers

    def claim(self) -> bool:
        """Allocates the memory of the results; allocates none and returns False if runs have
        observers.

        Raises:
          DeviceMemoryError: the results do not fit.
        """
        if self.observers:
            return False
        self._ledger.allocate(self._cores, self.result_bytes, self.needed)
        return True

    def disclaim(self) -> None:
        """Frees the memory of the results after a failed run."""
        self._ledger.free(self._cores, self.result_bytes)
