"""Whether semaphores order what conflicts: every schedule of a small kernel, by brute force.

Semaphores only grow, so what can happen while one instruction hangs does happen when everything
else goes as far as it can. If a later instruction that conflicts can begin meanwhile, some schedule
of a real core runs both at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Kernel
from tests.lower.unrolled import Step, steps


def queue(instruction: Instruction) -> object:
    """Where an instruction goes that its engine only starts; None: the engine does it."""
    if isinstance(instruction, DmaInstruction):
        return (instruction.engine, "queue", instruction.queue)
    if isinstance(instruction, CollectiveInstruction):
        return (instruction.engine, "collectives", instruction.stream)
    return None


class Schedule:
    """How far everything comes while one step, if any, never ends."""

    def __init__(self, all_steps: list[Step], hanging: Step | None = None) -> None:
        self.hanging = hanging
        self.counts: Counter[str] = Counter()
        self.begun: set[int] = set()
        self.ended: set[int] = set()
        self.engines: dict[object, list[Step]] = defaultdict(list)
        self.queues: dict[object, list[Step]] = defaultdict(list)
        for step in reversed(all_steps):
            self.engines[step.instruction.engine].append(step)
        while any([*map(self._engine, self.engines), *map(self._queue, self.queues)]):
            pass

    def _engine(self, engine: object) -> bool:
        waiting, moved = self.engines[engine], False
        while waiting and all(
            self.counts[wait.semaphore.name] >= wait.count.at(waiting[-1].values)
            for wait in waiting[-1].instruction.waits
        ):
            step = waiting[-1]
            where = queue(step.instruction)
            if where is not None:
                self.queues[where].insert(0, step)
            elif not self._run(step):
                return moved
            waiting.pop()
            moved = True
        return moved

    def _queue(self, where: object) -> bool:
        waiting, moved = self.queues[where], False
        while waiting and self._run(waiting[-1]):
            waiting.pop()
            moved = True
        return moved

    def _run(self, step: Step) -> bool:
        self.begun.add(step.index)
        if step is self.hanging:
            return False
        self.ended.add(step.index)
        for signal in step.instruction.signals:
            self.counts[signal.semaphore.name] += signal.by
        return True


def stuck(kernel: Kernel) -> list[Step]:
    """Steps that never end."""
    all_steps = steps(kernel)
    ended = Schedule(all_steps).ended
    return [step for step in all_steps if step.index not in ended]


def races(kernel: Kernel) -> list[tuple[Step, Step]]:
    """Pairs of steps that conflict, the later one of which may begin before the other has ended."""
    all_steps = steps(kernel)
    found = []
    for step in all_steps:
        rivals = [later for later in all_steps[step.index + 1 :] if step.conflicts(later)]
        if rivals:
            begun = Schedule(all_steps, step).begun
            found += [(step, later) for later in rivals if later.index in begun]
    return found
