"""What kernels leave to those after them.

Times are ps. A kernel's state counts from when all kernels are over that it does not overlap; what
lies before that is as good as that, so kernels that begin alike have equal states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from neuronjax.machine.specs import Engine
from neuronjax.timing.encoding import ENGINES

COUNT = len(ENGINES)
LONG_AGO = -(10**12)
_TENSOR = ENGINES.index(Engine.TENSOR)


@dataclass(frozen=True, slots=True)
class State:
    """A core between kernels."""

    #: When engines, and their generators of descriptors, are free, by index of `ENGINES`.
    engines: tuple[int, ...] = (0,) * COUNT
    generators: tuple[int, ...] = (0,) * COUNT
    #: By number of the queue: start and end of its last transfer.
    queues: tuple[tuple[int, int, int], ...] = ()
    #: By number of the stream: end of its last collective.
    streams: tuple[tuple[int, int], ...] = ()
    link: int = 0
    #: When the DMA engines are free, and before it; and the end of the last transfer.
    dma: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    dma_end: int = 0
    #: Activation tables that are loaded, and the Tensor engine's use.
    tables: str | None = None
    heat: int = 0

    def since(self, time: int, interval: int) -> State:
        """The state as counted from `time`; transfers of a queue start `interval` apart.

        How long the Tensor engine has been idle counts as long as it is warm.
        """
        engines = [max(0, end - time) for end in self.engines]
        if self.heat:
            engines[_TENSOR] = self.engines[_TENSOR] - time
        queues = [(queue, start - time, end - time) for queue, start, end in self.queues]
        return replace(
            self,
            engines=tuple(engines),
            generators=tuple(max(0, end - time) for end in self.generators),
            queues=tuple(
                (queue, max(start, -interval), max(0, end))
                for queue, start, end in queues
                if end > 0 or start + interval > 0
            ),
            streams=tuple((key, end - time) for key, end in self.streams if end > time),
            link=max(0, self.link - time),
            dma=max(0, self.dma - time),
            gaps=tuple((max(0, b - time), e - time) for b, e in self.gaps if e > time),
            dma_end=max(0, self.dma_end - time),
        )

    def later(self, time: int) -> State:
        """The state with all of it `time` later."""
        return replace(
            self,
            engines=tuple(end + time for end in self.engines),
            generators=tuple(end + time for end in self.generators),
            queues=tuple((queue, start + time, end + time) for queue, start, end in self.queues),
            streams=tuple((key, end + time) for key, end in self.streams),
            link=self.link + time,
            dma=self.dma + time,
            gaps=tuple((begin + time, end + time) for begin, end in self.gaps),
            dma_end=self.dma_end + time,
        )


REST = State()
"""Everything is free."""
