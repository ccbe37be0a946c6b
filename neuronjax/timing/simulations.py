"""Kernels in time, each of those that are equal and begin alike once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from neuronjax.program.instruction import After
from neuronjax.timing.encoding import Compiled
from neuronjax.timing.platform import Platform
from neuronjax.timing.simulate import Simulated, simulate
from neuronjax.timing.state import State


class Simulations:
    """Kernels that have been simulated, for programs that have some in common.

    Those on another platform are forgotten.
    """

    def __init__(self) -> None:
        self._platform: Platform | None = None
        self._numbers: dict[Hashable, int] = {}
        self._results: dict[Hashable, Simulated] = {}

    def use(self, platform: Platform) -> None:
        """The platform that kernels run on from here on."""
        if self._platform != platform:
            self._platform, self._numbers, self._results = platform, {}, {}

    def number(self, streams: Compiled) -> int:
        """The number of all kernels that are equal to this one."""
        key = (
            streams.streams, streams.queues, streams.collective_streams, streams.completing,
            streams.is_partial, streams.is_static, streams.parts,
        )  # fmt: skip
        return self._numbers.setdefault(key, len(self._numbers))

    def result(
        self, number: int, streams: Compiled, state: State, completed: Mapping[After, int]
    ) -> tuple[Simulated, bool]:
        """A kernel in time, and whether it is new; see `simulate`."""
        assert self._platform is not None
        key = (number, state, *completed.items())
        known = self._results.get(key)
        if known is not None:
            return known, False
        result = simulate(streams, self._platform, state=state, completed=completed)
        self._results[key] = result
        return result, True
