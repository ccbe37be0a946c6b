"""Instructions of the engines' sequencers, and calls to the host.

Loops, conditions and calls have bodies, so they are nodes of `program` and not instructions.
"""

from __future__ import annotations

from dataclasses import field

from neuronjax.machine.specs import Engine
from neuronjax.program.affine import Affine
from neuronjax.program.instruction import READ, WRITE, Instruction, instruction
from neuronjax.program.operand import Access, Immediate, Register
from neuronjax.program.operators import AluOp

_ANY = (Engine.SYNC, Engine.SCALAR, Engine.GPSIMD, Engine.VECTOR, Engine.TENSOR)

RegisterValue = Register | Immediate | Affine


@instruction("register_load", _ANY)
class RegisterLoad(Instruction):
    """dst = the one element of src, in HBM or SBUF."""

    dst: Register = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    engine: Engine = Engine.SYNC


@instruction("register_store", _ANY)
class RegisterStore(Instruction):
    """Stores src as the one element of dst, in HBM or SBUF."""

    dst: Access = field(metadata=WRITE)
    src: Register = field(metadata=READ)
    engine: Engine = Engine.SYNC


@instruction("register_move", _ANY)
class RegisterMove(Instruction):
    """dst = src: a register, a constant, or an affine function of loop variables."""

    dst: Register = field(metadata=WRITE)
    src: RegisterValue = field(metadata=READ)
    engine: Engine = Engine.SYNC


@instruction(
    "register_alu", _ANY, page="NKI collectives current_processing_rank_id: register ALU operations"
)
class RegisterArithmetic(Instruction):
    """dst = left op right, in 32-bit integers."""

    dst: Register = field(metadata=WRITE)
    op: AluOp
    left: RegisterValue = field(metadata=READ)
    right: RegisterValue = field(metadata=READ)
    engine: Engine = Engine.SYNC


@instruction(
    "semaphore_event", _ANY, page="Trainium/Inferentia2 architecture guide, engines and semaphores"
)
class SemaphoreEvent(Instruction):
    """Only the `waits` and `signals`, in the stream of `engine`."""

    engine: Engine = Engine.SYNC


@instruction("host", (), page="none: no instruction of the hardware")
class Host(Instruction):
    """dsts = function(srcs) on the host: an operation that no engine supports, such as an FFT.

    Programs of real hardware have none. `function` names the StableHLO operation, `attributes` are
    its attributes as text. `comparisons` is how often a sort compares two elements, about. `reason`
    says why a kernel that a user wrote is left to the host, and what to do about it.
    """

    function: str
    dsts: tuple[Access, ...] = field(metadata=WRITE)
    srcs: tuple[Access, ...] = field(metadata=READ)
    attributes: str = ""
    comparisons: int = 0
    reason: str = ""
