"""Which nodes of a list must stay before which others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from neuronjax.lower.schedule.contacts import Contact, contacts
from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.control import Host
from neuronjax.program.dma import SendReceive
from neuronjax.program.footprint import Footprint
from neuronjax.program.gpsimd_engine import CoreBarrier
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer
from neuronjax.program.operators import ReduceCommand
from neuronjax.program.program import Node
from neuronjax.program.random_numbers import RandomNumbers
from neuronjax.program.scalar_engine import ActivateReduce
from neuronjax.program.walk import leaves

BARRIERS = (CollectiveInstruction, Host, SendReceive, CoreBarrier)
"""What nothing passes."""
_ALONE = (ReduceCommand.RESET_REDUCE, ReduceCommand.RESET)

Shared = Callable[[Buffer, Buffer], bool | None]
"""Whether two different buffers of HBM begin at one place; None: they may share memory somehow."""

Before = list[dict[int, bool]]
"""By node: those that it must come after, and whether it reads what they write."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What a node touches; a barrier touches everything."""

    contacts: tuple[Contact, ...]
    is_barrier: bool

    def later(self, variable: str | None, by: int) -> Effects:
        """These effects so many iterations of a loop later."""
        if variable is None or not by:
            return self
        later = (
            contact
            if contact.footprint is None
            else Contact(
                contact.place,
                contact.is_write,
                contact.footprint.later(variable, by),
                contact.buffer,
            )
            for contact in self.contacts
        )
        return Effects(tuple(later), self.is_barrier)


def effects(node: Node) -> Effects:
    """What a node touches, registers and states of engines among it."""
    states: dict[tuple[str, bool], None] = {}
    is_barrier = False
    for leaf in leaves((node,)):
        is_barrier = is_barrier or isinstance(leaf, BARRIERS)
        if isinstance(leaf, RandomNumbers):
            states["!random", True] = None
        elif isinstance(leaf, ActivateReduce) or hasattr(leaf, "reduce_cmd"):
            states[f"!{leaf.engine}", _keeps_result(leaf)] = None
    of_states = (Contact(place, is_write, None) for place, is_write in states)
    return Effects((*contacts(node), *of_states), is_barrier)


def precedence(nodes: Sequence[Effects], shared: Shared) -> Before:
    """What orders nodes: one of them writes what the other one touches, or both have a state."""
    finder = _Finder(shared)
    return [finder.node(index, node) for index, node in enumerate(nodes)]


@dataclass(slots=True)
class _Users:
    """Nodes that touched a place so far, and what they touched, oldest first."""

    writers: list[tuple[int, Footprint | None]] = field(default_factory=list)
    readers: list[tuple[int, Footprint | None]] = field(default_factory=list)


class _Finder:
    """Goes through a list once."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._users: dict[str, _Users] = {}
        self._buffers: dict[str, Buffer] = {}
        #: Buffer of HBM -> others that may share memory, and whether they begin at one place.
        self._near: dict[str, list[tuple[str, bool]]] = {}
        self._barrier: int | None = None

    def node(self, index: int, node: Effects) -> dict[int, bool]:
        """What the next node comes after."""
        earlier: dict[int, bool] = {}
        if self._barrier is not None:
            earlier[self._barrier] = True
        if node.is_barrier:
            earlier.update((other, True) for other in range(index))
            self._barrier = index
        for contact in node.contacts:
            self._declare(contact)
            self._follow(contact, earlier)
        for contact in node.contacts:
            self._note(contact, index)
        return earlier

    def _declare(self, contact: Contact) -> None:
        """Finds out which buffers a new one shares memory with."""
        if contact.place in self._users:
            return
        self._users[contact.place] = _Users()
        new = contact.buffer
        if new is None or new.on_chip:
            return
        self._near[new.name] = []
        for name, buffer in self._buffers.items():
            answer = self._shared(new, buffer)
            if answer is not False:
                self._near[new.name].append((name, answer is True))
                self._near[name].append((new.name, answer is True))
        self._buffers[new.name] = new

    def _follow(self, contact: Contact, earlier: dict[int, bool]) -> None:
        places = [(contact.place, True), *self._near.get(contact.place, ())]
        for place, is_same in places:
            users = self._users[place]
            _meet(contact, users.writers, is_same, not contact.is_write, earlier)
            if contact.is_write:
                _meet(contact, users.readers, is_same, False, earlier)

    def _note(self, contact: Contact, index: int) -> None:
        users = self._users[contact.place]
        if contact.is_write:
            # Whoever meets one of these meets the new one, too.
            for known in (users.writers, users.readers):
                known[:] = [user for user in known if user[1] != contact.footprint]
            users.writers.append((index, contact.footprint))
        else:
            users.readers.append((index, contact.footprint))


def _meet(
    contact: Contact,
    users: Sequence[tuple[int, Footprint | None]],
    is_same: bool,
    reads: bool,
    earlier: dict[int, bool],
) -> None:
    own = contact.footprint
    for index, other in users:
        if earlier.get(index, False) or (index in earlier and not reads):
            continue
        if own is None or other is None or not is_same or own.meets(other):
            earlier[index] = reads


def _keeps_result(leaf: Instruction) -> bool:
    """Whether it leaves something in accumulator registers, or goes on with what is there."""
    command = getattr(leaf, "reduce_cmd", ReduceCommand.RESET_REDUCE)
    is_idle = command is ReduceCommand.IDLE and getattr(leaf, "reduce_res", None) is None
    return not is_idle and command not in _ALONE
