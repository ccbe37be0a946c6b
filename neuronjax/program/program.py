"""Kernels, control, and whole programs.

A program is what every rank runs: buffers that outlive kernels, and nodes in order. A kernel is a
loop nest with instructions at its leaves, together with where it comes from: the unit that people
see in a profile. Engines run their instructions in order and beside each other; what orders them
within a kernel are semaphores, all of them 0 when it starts.
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
    """`body`, while `variable` counts from 0 to `trips` - 1; a register decides at run time."""

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
        """Trips at most; None where a register without limit decides."""
        return self.trips if isinstance(self.trips, int) else self.trips.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class While:
    """`condition` and then `body`, until `condition` leaves 0 in `register`."""

    condition: tuple[Node, ...]
    register: Register
    body: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class If:
    """`then` if `register` is not 0, else `otherwise`."""

    register: Register
    then: tuple[Node, ...]
    otherwise: tuple[Node, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The function of that name, with these HBM buffers for its parameters, one for one."""

    function: str
    arguments: tuple[Buffer, ...]
    #: The user's name scopes of the parts of its kernel; no part of the text.
    scopes: tuple[str, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Part:
    """What a kernel does for some of its operations, when it was several kernels once."""

    name: str
    operations: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A loop nest over instructions, with its own tiles.

    `operations` are the StableHLO operations that it computes, `sources` the user's lines. If it
    has `parts`, an instruction's `part` is an index to them; `scopes` are the user's name scopes of
    the parts, and no part of the text.
    """

    name: str
    body: tuple[Node, ...]
    buffers: tuple[Buffer, ...] = ()
    semaphores: tuple[Semaphore, ...] = ()
    operations: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    scopes: tuple[str, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Kernels beside each other, the i-th on the i-th physical core; it ends when all of them have.

    They share HBM, where none writes what another one touches. SBUF, PSUM, engines, DMA queues and
    semaphores are each core's own. A kernel in no split runs on the first core.
    """

    name: str
    kernels: tuple[Kernel, ...]


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
    """`buffer` lies on purpose in the memory of `of`: a donated argument, or a tile used twice."""

    buffer: str
    of: str


@dataclass(frozen=True, slots=True)
class Target:
    """What a program is for: a chip of `machine`, and physical cores per logical core."""

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
    """What one logical core runs; `ranks` of them run it together."""

    name: str
    target: Target
    body: tuple[Node, ...]
    buffers: tuple[Buffer, ...] = ()
    registers: tuple[Register, ...] = ()
    functions: tuple[Function, ...] = ()
    aliases: tuple[Alias, ...] = ()
    ranks: int = 1
