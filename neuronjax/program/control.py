"""Instructions of the engines' sequencers, and calls to the host.

Loops, conditions and calls have bodies, so they are nodes of `program` and not instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from neuronjax.machine.specs import Engine
from neuronjax.program.affine import Affine
from neuronjax.program.instruction import READ, WRITE, Instruction
from neuronjax.program.operand import Access, Immediate, Register
from neuronjax.program.operators import AluOp

_ANY = (Engine.SYNC, Engine.SCALAR, Engine.GPSIMD, Engine.VECTOR, Engine.TENSOR)

RegisterValue = Register | Immediate | Affine


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterLoad(Instruction):
    """dst = the one element of src, in HBM or SBUF."""

    mnemonic: ClassVar[str] = "register_load"
    engines: ClassVar[tuple[Engine, ...]] = _ANY
    page: ClassVar[str] = "NKI ISA register_load"

    dst: Register = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    engine: Engine = Engine.SYNC


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterStore(Instruction):
    """The one element of dst, in HBM or SBUF = src."""

    mnemonic: ClassVar[str] = "register_store"
    engines: ClassVar[tuple[Engine, ...]] = _ANY
    page: ClassVar[str] = "NKI ISA register_store"

    dst: Access = field(metadata=WRITE)
    src: Register = field(metadata=READ)
    engine: Engine = Engine.SYNC


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterMove(Instruction):
    """dst = src: a register, a constant, or an affine function of loop variables."""

    mnemonic: ClassVar[str] = "register_move"
    engines: ClassVar[tuple[Engine, ...]] = _ANY
    page: ClassVar[str] = "NKI ISA register_move"

    dst: Register = field(metadata=WRITE)
    src: RegisterValue = field(metadata=READ)
    engine: Engine = Engine.SYNC


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterArithmetic(Instruction):
    """dst = left op right, in 32-bit integers."""

    mnemonic: ClassVar[str] = "register_alu"
    engines: ClassVar[tuple[Engine, ...]] = _ANY
    page: ClassVar[str] = "NKI collectives current_processing_rank_id: register ALU operations"

    dst: Register = field(metadata=WRITE)
    op: AluOp
    left: RegisterValue = field(metadata=READ)
    right: RegisterValue = field(metadata=READ)
    engine: Engine = Engine.SYNC


@dataclass(frozen=True, kw_only=True, slots=True)
class SemaphoreEvent(Instruction):
    """Only the `waits` and `signals`, in the stream of `engine`."""

    mnemonic: ClassVar[str] = "semaphore_event"
    engines: ClassVar[tuple[Engine, ...]] = _ANY
    page: ClassVar[str] = "Trainium/Inferentia2 architecture guide, engines and semaphores"

    engine: Engine = Engine.SYNC


@dataclass(frozen=True, kw_only=True, slots=True)
class Host(Instruction):
    """dsts = function(srcs) on the host: an operation that no engine supports, such as an FFT.

    Programs of real hardware have none. `function` names the StableHLO operation, `attributes` are
    its attributes as text. `comparisons` is how often a sort compares two elements, about. `reason`
    says why a kernel that a user wrote is left to the host, and what to do about it.
    """

    mnemonic: ClassVar[str] = "host"
    engines: ClassVar[tuple[Engine, ...]] = ()
    page: ClassVar[str] = "none: no instruction of the hardware"

    function: str
    dsts: tuple[Access, ...] = field(metadata=WRITE)
    srcs: tuple[Access, ...] = field(metadata=READ)
    attributes: str = ""
    comparisons: int = 0
    reason: str = ""


INSTRUCTIONS: tuple[type[Instruction], ...] = (
    RegisterLoad, RegisterStore, RegisterMove, RegisterArithmetic, SemaphoreEvent, Host,
)  # fmt: skip
