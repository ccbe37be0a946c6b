"""The clocks between kernels: when kernels and their streams end, and what they leave.

Times are ps from the start of the first kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from neuronjax.program.program import Program, Split
from neuronjax.program.walk import kernels, walk
from neuronjax.timing.encoding import Compiled
from neuronjax.timing.simulate import Simulated
from neuronjax.timing.state import LONG_AGO, REST, State


def most_overlaps(program: Program) -> int:
    """How many kernels of a program may run together with a later one."""
    splits = (node.overlaps for _, node in walk(program) if isinstance(node, Split))
    return max([0, *splits, *(kernel.overlaps for _, kernel in kernels(program))])


class Clocks:
    """The state between kernels, of which the last `window` may still run.

    `interval` is the least time between the starts of two transfers of a queue, `wake` passes from
    the end of a stream to what comes after it.
    """

    def __init__(self, interval: int, wake: int, window: int) -> None:
        self.interval = interval
        self.wake = wake
        self.window = window
        self.end = 0
        self.cores: dict[int, State] = {}
        #: By kernel, newest last: when it and all before it are over, and those of their streams
        #: that were not over with the kernels that it does not overlap.
        self.ends: deque[int] = deque(maxlen=window + 1)
        self.streams: deque[dict[str, int]] = deque(maxlen=window + 1)

    def begin(self, overlaps: int) -> int:
        """When a kernel may begin that overlaps so many."""
        if not overlaps:
            self.rest()
        return self.ends[-1 - overlaps] if len(self.ends) > overlaps else 0

    def rest(self) -> None:
        """All kernels before are over."""
        self.ends.extend([self.end] * (self.window + 1))
        self.streams.extend([{}] * (self.window + 1))

    def state(self, core: int, begin: int) -> State:
        """A physical core as a kernel sees it that begins at `begin`."""
        return self.cores.get(core, REST).since(begin, self.interval)

    def completed(self, stream: str, back: int) -> int:
        """When a stream has completed all kernels but the `back` - 1 last ones."""
        return self.streams[-back].get(stream, LONG_AGO) if len(self.streams) >= back else LONG_AGO

    def note(
        self,
        compiled: Sequence[tuple[Compiled, int]],
        results: Sequence[Simulated],
        begin: int,
        end: int,
    ) -> None:
        """That kernels run beside each other, which are over at `end`."""
        since = begin - self.wake
        streams = {name: time for name, time in self._recent().items() if time > since}
        for core, ((code, _), result) in enumerate(zip(compiled, results, strict=True)):
            self.cores[core] = result.left.later(begin)
            for name, time in zip(code.completing, result.completed, strict=True):
                streams[name] = max(streams.get(name, LONG_AGO), begin + time)
        self.end = max(self.end, end)
        self.ends.append(self.end)
        self.streams.append(streams)

    def _recent(self) -> dict[str, int]:
        return self.streams[-1] if self.streams else {}

    def signature(self) -> object:
        """What the times of all kernels after depend on, apart from when they begin."""
        begin = self.ends[0] if len(self.ends) > self.window else 0
        since = begin - self.wake
        return (
            begin - self.end,
            tuple(end - self.end for end in self.ends),
            tuple(
                tuple(sorted((name, time - begin) for name, time in times.items() if time > since))
                for times in self.streams
            ),
            tuple((core, self.state(core, begin)) for core in sorted(self.cores)),
        )

    def jump(self, time: int) -> None:
        """Everything is `time` later."""
        self.end += time
        self.cores = {core: state.later(time) for core, state in self.cores.items()}
        self.ends = deque((end + time for end in self.ends), self.window + 1)
        self.streams = deque(
            ({name: at + time for name, at in times.items()} for times in self.streams),
            self.window + 1,
        )
