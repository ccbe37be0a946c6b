"""Kernels, control, and whole programs.

A program is what every rank runs: buffers that outlive kernels, and nodes in order. A kernel is a
loop nest with instructions at its leaves, along with its origin in the source: the unit shown in a
profile. Every engine runs its instructions in order, concurrently with the other engines; within a
kernel semaphores synchronise them, all of which are 0 when it starts.

A kernel begins when all before it are done, unless it `overlaps` some: then engines go on to it
while those still run, and its instructions say `after` what of them they begin. Control that a
register decides waits until all kernels before it are done.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronjax.errors import MalformedProgramError
from neuronjax.machine.chips import CHIPS
from neuronjax.machine.specs import ChipSpec, CoreSpec
from neuronjax.program.instruction import Instruction, Semaphore
from neuronjax.program.operand import Buffer, Register, check_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """`body`, while `variable` counts from 0 to `trips` - 1: a constant, or a register that is read
    before every trip."""

    variable: str
    trips: int | Register
    body: tuple[Node, ...]

    def __post_init__(self) -> None:
        check_name(self.variable)
        if isinstance(self.trips, int) and self.trips < 1:
            raise MalformedProgramError(
                f"loop {self.variable} has {self.trips} trips; a loop that never runs is left out."
            )

    @property
    def most_trips(self) -> int | None:
        """The greatest number of trips; None if a register without limit decides."""
        return self.trips if isinstance(self.trips, int) else self.trips.limit

    @property
    def usual_trips(self) -> int | None:
        """The number of trips that is expected, or else the greatest."""
        usual = None if isinstance(self.trips, int) else self.trips.usual
        return self.most_trips if usual is None else usual


@dataclass(frozen=True, kw_only=True, slots=True)
class While:
    """Runs `condition`, then `body`, until `condition` leaves 0 in `register`."""

    condition: tuple[Node, ...]
    register: Register
    body: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class If:
    """`then` if `register` is not 0, else `otherwise`."""

    register: Register
    then: tuple[Node, ...]
    otherwise: tuple[Node, ...] = ()
    #: Whether `otherwise` is there for values that hardly occur, such as NaN.
    is_usual: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Calls the function of that name with one HBM buffer per parameter."""

    function: str
    arguments: tuple[Buffer, ...]
    #: The user's name scopes of the parts of its kernel; no part of the text.
    scopes: tuple[str, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Part:
    """The operations and sources of one of several kernels that were merged into one."""

    name: str
    operations: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A loop nest over instructions, with its own tiles.

    `operations` are the StableHLO operations that it computes, `sources` the user's lines. If it
    has `parts`, an instruction's `part` is an index into them. `scopes` are the user's name scopes
    of the parts, which the program text omits.
    """

    name: str
    body: tuple[Node, ...]
    buffers: tuple[Buffer, ...] = ()
    semaphores: tuple[Semaphore, ...] = ()
    operations: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    scopes: tuple[str, ...] = field(default=(), repr=False, compare=False)
    #: How many kernels right before it, a split counting once, may still run while it does.
    overlaps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Concurrent kernels, the i-th on the i-th physical core; it ends when all of them have ended.

    They share HBM, where none may write what another one touches. Every core has its own SBUF,
    PSUM, engines, DMA queues and semaphores. A kernel outside splits runs on the first core.
    """

    name: str
    kernels: tuple[Kernel, ...]

    @property
    def overlaps(self) -> int:
        """How many kernels right before it may still run: as many for all of its own."""
        return min((kernel.overlaps for kernel in self.kernels), default=0)


Node = Instruction | Loop | While | If | Call | Kernel | Split


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """Nodes that several calls share; `parameters` are HBM buffers that a call provides."""

    name: str
    parameters: tuple[Buffer, ...]
    body: tuple[Node, ...]

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True, slots=True)
class Alias:
    """`buffer` intentionally shares memory with `of`: a donated argument, or a tile used twice."""

    buffer: str
    of: str


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a program: a chip of `machine`, and physical cores per logical core."""

    chip: str
    lnc: int = 1
    #: The chip's record, if it is another than that of its name: a machine that does not exist.
    spec: ChipSpec | None = field(default=None, repr=False, compare=False)

    @property
    def chip_spec(self) -> ChipSpec:
        """KeyError: there is no such chip."""
        return self.spec or CHIPS[self.chip]

    @property
    def core(self) -> CoreSpec:
        """The physical core. KeyError: there is no such chip."""
        return self.chip_spec.core


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The program of a logical core; `ranks` of them run it together."""

    name: str
    target: Target
    body: tuple[Node, ...]
    buffers: tuple[Buffer, ...] = ()
    registers: tuple[Register, ...] = ()
    functions: tuple[Function, ...] = ()
    aliases: tuple[Alias, ...] = ()
    ranks: int = 1
