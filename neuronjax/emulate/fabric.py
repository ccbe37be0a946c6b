"""Exchanges between ranks, or between the cores of a split: a member posts its side and waits until
all members of the group have."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Sequence, Set
from dataclasses import dataclass, field

from neuronjax.emulate.clocks import Clock
from neuronjax.emulate.code import Step
from neuronjax.emulate.exchange import Array, Exchange
from neuronjax.emulate.frame import Values
from neuronjax.errors import CollectiveError

Running = Generator[None, None, None]
"""A running member, as a generator that yields when it can only wait for others."""


@dataclass(eq=False)
class Ticket:
    """A member's side of an exchange, and its results once the exchange has taken place."""

    rank: int
    step: Step
    exchange: Exchange
    sent: list[Array]
    results: list[Array] | None = None
    #: What its stream had seen; once the exchange has taken place, what any member had.
    seen: Clock = field(default_factory=Clock)
    #: What a member is: a rank, or a core of a split.
    member: str = "rank"

    def __str__(self) -> str:
        where = f"{self.step.path}{self.step.sources}"
        return f"{self.member} {self.rank} at {where}: {self.exchange.description}"


@dataclass
class Fabric:
    """The sides that members have posted, in order, by member and stream."""

    ranks: int
    #: What a member is: a rank, or a core of a split.
    member: str = "rank"
    _open: dict[tuple[int, str], deque[Ticket]] = field(default_factory=lambda: defaultdict(deque))
    #: How many exchanges have come to an end.
    done: int = 0

    def post(self, rank: int, step: Step, values: Values, seen: Clock | None = None) -> Ticket:
        """Posts a member's side; the last one to be posted makes the exchange take place.

        `seen` are the events that the member's stream has seen, where members share memory.

        Raises:
          CollectiveError: another member posts something else, or a member does not exist.
        """
        exchange = step.exchange
        assert exchange is not None
        sent = exchange.send(values)
        ticket = Ticket(rank, step, exchange, sent, seen=seen or Clock(), member=self.member)
        missing = [member for member in exchange.members if not 0 <= member < self.ranks]
        if missing:
            raise CollectiveError(
                f"{ticket} with {self.member}s {exchange.members}, but the program has only"
                f" {self.ranks}: {self.member}s {missing} do not exist. Change the groups."
            )
        self._open[rank, exchange.stream].append(ticket)
        self._meet(ticket)
        return ticket

    def _meet(self, ticket: Ticket) -> None:
        """Performs the exchange of a ticket if every member has posted its side."""
        stream, members = ticket.exchange.stream, ticket.exchange.members
        first = self._open[ticket.rank, stream][0]
        if first is not ticket:
            return
        sides = []
        for member in members:
            queue = self._open[member, stream]
            if not queue:
                return
            if not self._agree(ticket, queue[0]):
                return
            sides.append(queue[0])
        sent = {side.rank: side.sent for side in sides}
        seen = Clock()
        for side in sides:
            seen.join(side.seen)
        for side in sides:
            side.seen = seen
            side.results = side.exchange.combine(sent, side.rank)
            self._open[side.rank, stream].popleft()
        self.done += 1
        for member in members:
            if self._open[member, stream]:
                self._meet(self._open[member, stream][0])

    def _agree(self, ticket: Ticket, other: Ticket) -> bool:
        """Whether two sides belong to one exchange; if not, one of another group comes first."""
        mine, theirs = ticket.exchange, other.exchange
        if set(mine.members) != set(theirs.members):
            return False
        if mine.description != theirs.description:
            raise CollectiveError(
                f"{self.member}s run different collectives on {mine.stream}: {ticket}; {other}."
                f" All {self.member}s of a group must run the same collectives in the same order."
            )
        return True

    def waiting(self) -> list[Ticket]:
        """Open tickets, ordered by rank."""
        queues = sorted(self._open.items(), key=lambda item: item[0])
        return [ticket for _, queue in queues for ticket in queue]

    def run(self, members: Sequence[Running]) -> None:
        """Runs members until all of them are done.

        Raises:
          CollectiveError: no member can continue.
        """
        for active in self.running(members):
            self.fail(active)

    def running(self, members: Sequence[Running]) -> Generator[Set[int], None, None]:
        """Runs members until all of them are done; yields those that are left when none of them
        can continue."""
        active = dict(enumerate(members))
        while active:
            before = self.done
            finished = [member for member, running in active.items() if _is_over(running)]
            for member in finished:
                del active[member]
            if active and not finished and self.done == before:
                yield active.keys()

    def is_stuck(self, active: Set[int]) -> bool:
        """Whether every active member has posted a side whose exchange has not taken place."""
        return active <= {ticket.rank for ticket in self.waiting()}

    def fail(self, active: Set[int]) -> None:
        """Raises ``CollectiveError``: `active` members wait, and those that ended never come."""
        waiting = [str(ticket) for ticket in self.waiting() if ticket.rank in active]
        gone = sorted(set(range(self.ranks)) - set(active))
        ended = f" {self.member.capitalize()}s {gone} have ended." if gone else ""
        raise CollectiveError(
            f"{self.member}s wait forever: {'; '.join(waiting)}.{ended} All {self.member}s of a"
            " group must run the same collectives in the same order."
        )


@dataclass(frozen=True, slots=True)
class Member:
    """The place where code runs, and whom it meets: other ranks and, in a split, other cores."""

    ranks: Fabric
    rank: int
    cores: Fabric | None = None
    core: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank}" if self.cores is None else f"core {self.core}"

    def post(self, step: Step, values: Values, seen: Clock | None = None) -> Ticket:
        """Posts the member's side of an exchange, as `Fabric.post` does."""
        exchange = step.exchange
        assert exchange is not None
        if not exchange.is_between_cores:
            return self.ranks.post(self.rank, step, values)
        assert self.cores is not None
        return self.cores.post(self.core, step, values, seen)


def _is_over(running: Running) -> bool:
    try:
        next(running)
    except StopIteration:
        return True
    return False
