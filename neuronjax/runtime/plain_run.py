"""The run of a program that is nothing but itself on one core: what small steps are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neuronjax.host.client import HostExecutable
from neuronjax.runtime.memory import HbmLedger


class PlainRun:
    """How to run a program where nothing else is to be done.

    Whoever runs it calls ``claim``, then ``start`` with the arguments' arrays and
    ``consume_with_handlers(handlers)`` of what that returns, and ``disclaim`` if either raised.
    """

    def __init__(
        self,
        host: HostExecutable,
        start: Callable[[list[Any]], Any],
        arguments: int,
        result_bytes: int,
        ledger: HbmLedger,
        observers: Sequence[Any],
    ) -> None:
        self.arguments = arguments
        self.start = start
        self.handlers = host.handlers
        self._result_bytes = result_bytes
        self._cores = host.placement.ids
        self._ledger = ledger
        self._observers = observers

    def claim(self) -> bool:
        """Takes the memory of the results; False, and takes none, if somebody observes runs.

        Raises:
          DeviceMemoryError: it does not fit.
        """
        if self._observers:
            return False
        self._ledger.allocate(self._cores, self._result_bytes)
        return True

    def disclaim(self) -> None:
        """Gives the memory of the results back: there are none."""
        self._ledger.free(self._cores, self._result_bytes)
