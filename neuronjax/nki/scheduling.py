"""Dependencies that a kernel adds between instructions: with `depends_on`, or by their names with
`with_schedule`.

Engines execute instructions in the order in which they are written and wait for data, so what a
dependency asks for holds already unless it is between engines, where it would change only times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from neuronjax.errors import KernelError, UnsupportedProgramError, did_you_mean, quoted
from neuronjax.nki.loop_marks import LoopMarks
from neuronjax.nki.tracing import current

Edges = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of instructions, and those of what each depends on."""

_NOTE = (
    "dependencies between instructions are checked and add no waits: engines keep the order in "
    "which instructions are written, and wait for data"
)


@dataclass(frozen=True, repr=False)
class NkiInstruction:
    """An instruction of a kernel, as functions of `nki.isa` return it."""

    function: str
    line: str
    place: int
    #: The loop over a register that it is in.
    loop: LoopMarks | None = None

    def __repr__(self) -> str:
        return f"the instruction {self.function} of {self.line}"

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Itself, which runs after `producers`.

        Raises:
          UnsupportedProgramError: these are no instructions, or one is in a loop over a register
            that this is not in.
          KernelError: one is written later.
        """
        trace = current()
        for producer in producers:
            if not isinstance(producer, NkiInstruction):
                raise UnsupportedProgramError(
                    f"{trace.line()}: depends_on takes no {quoted(producer)}; pass what a function "
                    "of nki.isa returned."
                )
            if producer.loop is not None and producer.loop is not self.loop:
                raise UnsupportedProgramError(
                    f"{trace.line()}: {self!r} cannot depend on {producer!r}, which is in a loop "
                    "over a register; let both be in the same loop."
                )
            if producer.place >= self.place:
                raise KernelError(
                    f"{trace.line()}: {self!r} cannot depend on {producer!r}, which is written "
                    "later; engines keep the order of the kernel, so write that one first."
                )
        trace.remarks[_NOTE] = None
        return self

    def __getattr__(self, name: str) -> NoReturn:
        """KernelError: it is used as the tile that it writes to."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise self._no_tile(f"has no {name!r}")

    def __getitem__(self, index: object) -> NoReturn:
        raise self._no_tile("has no elements")

    def _no_tile(self, what: str) -> KernelError:
        return KernelError(
            f"{current().line()}: {self!r} {what}: nki.isa.{self.function} writes to dst, a tile "
            "that you declare; use that."
        )


def edges_of(schedule: object) -> Edges:
    """The dependencies of `with_schedule`: pairs of a name, and of a name or several that it
    depends on. ``KernelError``: these are no such pairs."""
    pairs = list(schedule) if isinstance(schedule, Iterable) else [None]
    edges = tuple(_edge(pair) for pair in pairs)
    _check_order(dict(edges), schedule)
    return edges


def _edge(pair: object) -> tuple[str, tuple[str, ...]]:
    if isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2:
        consumer, producers = pair
        names = (producers,) if isinstance(producers, str) else tuple(producers)
        if all(isinstance(name, str) for name in (consumer, *names)):
            return consumer, names
    raise KernelError(
        f"with_schedule takes no {quoted(pair)}; pass pairs of an instruction's name and of those "
        'that it depends on, such as ("plus1", ["recip"]).'
    )


def _check_order(edges: Mapping[str, tuple[str, ...]], schedule: object) -> None:
    """KernelError: an instruction depends on itself."""
    for name in edges:
        if name in _all_before(edges, name):
            raise KernelError(
                f"with_schedule: {name!r} depends on itself in {quoted(schedule)}; leave out a "
                "pair."
            )


def _all_before(edges: Mapping[str, tuple[str, ...]], name: str) -> set[str]:
    known: set[str] = set()
    rest = [*edges.get(name, ())]
    while rest:
        producer = rest.pop()
        if producer not in known:
            known.add(producer)
            rest.extend(edges.get(producer, ()))
    return known


def notes(edges: Edges, names: Mapping[str, str], kernel: str) -> Iterator[str]:
    """What to note about a schedule of instructions, whose names have lines.

    KernelError: the kernel has no instruction of such a name.
    """
    for name in dict.fromkeys(name for consumer, of in edges for name in (consumer, *of)):
        if name not in names:
            raise KernelError(
                f"with_schedule: {kernel} has no instruction with name={name!r}."
                f"{did_you_mean(name, names)} Give names to functions of nki.isa."
            )
    if edges:
        yield _NOTE
