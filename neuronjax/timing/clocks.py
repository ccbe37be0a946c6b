"""The clocks between kernels: when kernels and their streams end, and what they leave.

Times are ps from the start of the first kernel.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from neuronjax.program.instruction import After
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
        #: By kernel, newest last: when it and all before it are over; and for streams that were not
        #: over with the kernels that it does not overlap, when 0, 1, … of its instructions were.
        self.ends: deque[int] = deque(maxlen=window + 1)
        self.streams: deque[dict[str, tuple[int, ...]]] = deque(maxlen=window + 1)

    def begin(self, overlaps: int) -> int:
        """The time at which a kernel may begin that overlaps so many."""
        if not overlaps:
            self.rest()
        return self.ends[-1 - overlaps] if len(self.ends) > overlaps else 0

    def rest(self) -> None:
        """Lets all kernels before be over."""
        self.ends.extend([self.end] * (self.window + 1))
        self.streams.extend([{}] * (self.window + 1))

    def state(self, core: int, begin: int) -> State:
        """A physical core as a kernel sees it that begins at `begin`."""
        return self.cores.get(core, REST).since(begin, self.interval)

    def completed(self, after: After) -> int:
        """The time at which all is complete that an instruction comes after."""
        if len(self.streams) < after.back:
            return LONG_AGO
        times = self.streams[-after.back].get(after.stream, (LONG_AGO,))
        return times[max(0, len(times) - 1 - after.left)]

    def note(
        self,
        compiled: Sequence[tuple[Compiled, int]],
        results: Sequence[Simulated],
        begin: int,
        end: int,
    ) -> None:
        """Notes kernels that run beside each other, which are over at `end`."""
        since = begin - self.wake
        recent = self.streams[-1] if self.streams else {}
        streams = {name: times[-1:] for name, times in recent.items() if times[-1] > since}
        for core, ((code, _), result) in enumerate(zip(compiled, results, strict=True)):
            self.cores[core] = result.left.later(begin)
            for name, own in zip(code.completing, result.completed, strict=True):
                times = (*streams.get(name, (LONG_AGO,)), *(begin + time for time in own))
                reached = tuple(itertools.accumulate(times, max))
                streams[name] = reached if code.is_static else reached[-1:]
        self.end = max(self.end, end)
        self.ends.append(self.end)
        self.streams.append(streams)

    def signature(self) -> object:
        """What the times of all kernels after depend on, apart from when they begin."""
        begin = self.ends[0] if len(self.ends) > self.window else 0
        since = begin - self.wake
        return (
            begin - self.end,
            tuple(end - self.end for end in self.ends),
            tuple(
                tuple(
                    (name, tuple(time - begin if time > since else None for time in times))
                    for name, times in sorted(streams.items())
                    if times[-1] > since
                )
                for streams in self.streams
            ),
            tuple((core, self.state(core, begin)) for core in sorted(self.cores)),
        )

    def jump(self, time: int) -> None:
        """Makes all that the clocks know `time` later."""
        self.end += time
        self.cores = {core: state.later(time) for core, state in self.cores.items()}
        self.ends = deque((end + time for end in self.ends), self.window + 1)
        self.streams = deque(
            (
                {name: tuple(at + time for at in times) for name, times in streams.items()}
                for streams in self.streams
            ),
            self.window + 1,
        )
