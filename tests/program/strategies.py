"""Random programs: well-formed records of every type, whether or not a chip could run them.

Values are drawn by the types that fields declare, so a new instruction needs no strategy.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from neuronjax.machine.chips import CHIPS
from neuronjax.program.affine import Affine, First, Last, affine
from neuronjax.program.element_types import ELEMENT_TYPES
from neuronjax.program.field_types import field_hints
from neuronjax.program.instruction import After, Instruction, Semaphore, Signal, Wait
from neuronjax.program.operand import (
    Access,
    Buffer,
    Dim,
    Immediate,
    Kind,
    Memory,
    Register,
    RegisterOffset,
)
from neuronjax.program.program import (
    Alias,
    Call,
    Function,
    If,
    Kernel,
    Loop,
    Node,
    Program,
    Split,
    Target,
    While,
)
from neuronjax.program.table import INSTRUCTIONS

FEW = settings(
    max_examples=3,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""Programs are large: few of them, and no shrinking."""

small = st.integers(-5, 1 << 40)
sizes = st.integers(1, 1 << 17)
VARIABLES = ("i", "k", "first", "true", "none", "add", "_3")
variables = st.sampled_from(VARIABLES)
affines = st.builds(
    lambda base, terms: affine(base, **terms), small, st.dictionaries(variables, small, max_size=3)
)
dims = st.builds(Dim, small, sizes)
registers = st.lists(
    st.builds(Register, st.sampled_from(("r", "none", "loop")), st.none() | sizes),
    min_size=1,
    unique_by=lambda register: register.name,
)
semaphores = st.lists(st.builds(Semaphore, st.sampled_from(("s", "t"))), min_size=1, unique=True)
texts = st.text(max_size=8)
names = st.sampled_from(("main", "loop", "kernel", "_1"))


def buffers(prefix: str, memories: tuple[Memory, ...]) -> st.SearchStrategy[list[Buffer]]:
    one = st.builds(
        Buffer,
        name=st.sampled_from([f"{prefix}{end}" for end in ("a", "b", "sbuf")]),
        memory=st.sampled_from(memories),
        dtype=st.sampled_from(list(ELEMENT_TYPES.values())),
        shape=st.lists(sizes, min_size=1, max_size=4).map(tuple),
        kind=st.sampled_from(Kind),
        partition=st.integers(0, 128),
        address=st.none() | st.integers(0, 1 << 40),
        slots=st.integers(1, 4),
        slot_stride=st.none() | sizes,
        data=st.none() | st.binary(max_size=6),
    )
    return st.lists(one, min_size=1, max_size=3, unique_by=lambda buffer: buffer.name)


@dataclasses.dataclass(frozen=True)
class Scope:
    """What instructions can refer to."""

    buffers: tuple[Buffer, ...]
    registers: tuple[Register, ...]
    semaphores: tuple[Semaphore, ...]

    def value(self, hint: object) -> st.SearchStrategy:
        """Values of a type that a field declares."""
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            return st.one_of(map(self.value, typing.get_args(hint)))
        if typing.get_origin(hint) is tuple:
            inner = typing.get_args(hint)
            if inner[-1] is Ellipsis:
                return st.lists(self.value(inner[0]), max_size=3).map(tuple)
            return st.tuples(*map(self.value, inner))
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return st.sampled_from(hint)
        return self.plain()[hint]

    def plain(self) -> dict[object, st.SearchStrategy]:
        events = st.sampled_from(self.semaphores)
        known = st.sampled_from(self.registers)
        return {
            Access: self.access(),
            After: st.builds(After, names, small, small),
            Affine: affines,
            Dim: dims,
            First: st.builds(First, st.lists(variables, max_size=2).map(tuple)),
            Immediate: st.builds(Immediate, st.floats() | small),
            Last: st.builds(Last, st.lists(variables, max_size=2).map(tuple)),
            Register: known,
            Signal: st.builds(Signal, events, small),
            Wait: st.builds(Wait, events, affines),
            bool: st.booleans(),
            int: small,
            str: texts,
            type(None): st.none(),
        }

    @st.composite
    def _access(draw, self) -> Access:
        buffer = draw(st.sampled_from(self.buffers))
        bits = buffer.dtype.storage_bits
        alike = [dtype for dtype in ELEMENT_TYPES.values() if dtype.storage_bits == bits]
        register = st.builds(RegisterOffset, st.sampled_from(self.registers), small, affines)
        return Access(
            buffer=buffer,
            partition=draw(affines),
            partitions=draw(sizes),
            offset=draw(affines | register),
            dims=tuple(draw(st.lists(dims, max_size=4))),
            slot=draw(affines),
            dtype=draw(st.none() | st.sampled_from(alike)),
        )

    def access(self) -> st.SearchStrategy[Access]:
        return Scope._access(self)

    def instruction(self, kind: type[Instruction]) -> st.SearchStrategy[Instruction]:
        hints = field_hints(kind)
        return st.builds(kind, **{name: self.value(hint) for name, hint in hints.items()})


@st.composite
def scopes(draw: st.DrawFn) -> Scope:
    """Things to refer to; the buffers are those of one kernel."""
    inner = draw(buffers("k", tuple(Memory)))
    return Scope(tuple(inner), tuple(draw(registers)), tuple(draw(semaphores)))


def around(scope: Scope, *nodes: Node) -> Kernel:
    """A kernel with everything that a scope has."""
    return Kernel(name="k", body=nodes, buffers=scope.buffers, semaphores=scope.semaphores)


@st.composite
def single(draw: st.DrawFn, kind: type[Instruction]) -> Program:
    """A program of one instruction within loops over every variable it may name."""
    scope = draw(scopes())
    nest = draw(scope.instruction(kind))
    for variable in VARIABLES:
        nest = Loop(variable=variable, trips=draw(st.integers(1, 3)), body=(nest,))
    kernel = around(scope, nest)
    target = Target(draw(st.sampled_from(("trainium1", "trainium2", "trainium3"))))
    return Program(name="p", target=target, body=(kernel,), registers=scope.registers)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A program with all constructs around a few instructions."""
    scope = draw(scopes())
    outer = draw(buffers("p", (Memory.HBM, Memory.SBUF)))
    parameters = draw(buffers("f", (Memory.HBM,)))
    kinds = draw(st.lists(st.sampled_from(list(INSTRUCTIONS.values())), max_size=2))
    leaves = tuple(draw(scope.instruction(each)) for each in kinds)
    register = st.sampled_from(scope.registers)
    call = Call(function="f", arguments=tuple(draw(st.lists(st.sampled_from(outer), max_size=2))))
    nests = (
        Loop(variable=draw(variables), trips=draw(sizes | register), body=leaves),
        While(condition=leaves[:1], register=draw(register), body=(call,)),
        If(
            register=draw(register),
            then=leaves,
            otherwise=draw(st.just(()) | st.just(leaves)),
            is_usual=draw(st.booleans()),
        ),
    )
    kernel = dataclasses.replace(
        around(scope, *nests, *leaves),
        name=draw(texts),
        operations=tuple(draw(st.lists(texts, max_size=2))),
        sources=tuple(draw(st.lists(texts, max_size=2))),
    )
    return Program(
        name=draw(texts),
        target=Target(draw(st.sampled_from(sorted(CHIPS))), draw(st.integers(1, 2))),
        body=(kernel, call, Split(name=draw(texts), kernels=(kernel,) * draw(st.integers(0, 2)))),
        buffers=tuple(outer),
        registers=scope.registers,
        functions=(Function(name="f", parameters=tuple(parameters), body=()),),
        aliases=tuple(draw(st.lists(st.builds(Alias, names, names), max_size=2))),
        ranks=draw(st.integers(1, 64)),
    )
