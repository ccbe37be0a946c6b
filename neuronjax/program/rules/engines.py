"""Engines: which generation supports which instruction, on which engine, with which memories.

Sources: the NKI ISA page of each instruction; Neuron docs, architecture guides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neuronjax.machine.chips import CHIPS
from neuronjax.machine.specs import Engine
from neuronjax.program.control import Host
from neuronjax.program.dma import DmaInstruction, SendReceive
from neuronjax.program.gpsimd_engine import CoreBarrier
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Immediate, Memory, RegisterOffset
from neuronjax.program.operators import AluOp, DescriptorMode, PerformanceMode
from neuronjax.program.program import Program
from neuronjax.program.rules.site import Complaint, Site, Violation, engine_names
from neuronjax.program.scalar_engine import Activate, ActivateReduce
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.vector_engine import TensorScalar, TensorTensor

SINCE: Mapping[str, int] = {
    "nc_matmul_mx": 4, "quantize_mx": 4, "activate2": 4, "exponential": 4, "rand2": 4,
    "range_select": 3, "nonzero_with_count": 3, "rand_set_state": 3, "rand_get_state": 3,
    "core_barrier": 3, "sendrecv": 3, "dma_gather_transpose": 3,
}  # fmt: skip
"""First generation with an instruction; the others exist since NeuronCore-v2."""

_ENGINE_SINCE: Mapping[tuple[str, Engine], int] = {
    ("tensor_copy", Engine.SCALAR): 3,
    ("tensor_scalar", Engine.SCALAR): 3,
    ("rng", Engine.GPSIMD): 3,
    ("rand_set_state", Engine.VECTOR): 4,
    ("rand_get_state", Engine.VECTOR): 4,
}
_HBM_SBUF = (Memory.HBM, Memory.SBUF)
_ON_CHIP = (Memory.SBUF, Memory.PSUM)
#: Fields that take less than their engine could reach.
_MEMORIES: Mapping[tuple[str, str], tuple[Memory, ...]] = {
    **{(name, "dst"): (Memory.PSUM,) for name in ("nc_matmul", "nc_matmul_mx", "tensor_transpose")},
    ("core_barrier", "data"): (Memory.HBM, Memory.SBUF),  # SBUF: nki-library, bwmm_shard_on_I
    **{("sendrecv", name): (Memory.SBUF,) for name in ("src", "dst")},
    **{(name, "index"): (Memory.SBUF,)
       for name in ("dma_gather", "dma_scatter", "dma_gather_transpose")},
    **{(name, "table"): (Memory.HBM,)
       for name in ("dma_gather", "dma_scatter", "dma_gather_transpose")},
    ("dma_transpose", "dst"): (Memory.SBUF,),
    ("dma_gather_transpose", "dst"): (Memory.SBUF,),
    **{("quantize_mx", name): (Memory.SBUF,) for name in ("dst", "src", "dst_scale")},
    ("rand_set_state", "seeds"): (Memory.SBUF,),
}  # fmt: skip
_BY_ENGINE: Mapping[Engine | None, tuple[Memory, ...]] = {
    Engine.TENSOR: (Memory.SBUF,),
    Engine.VECTOR: _ON_CHIP,
    Engine.SCALAR: _ON_CHIP,
    Engine.GPSIMD: (Memory.SBUF,),
}
#: Pairs of operands of which one at most is in PSUM.
_NOT_BOTH_IN_PSUM: Mapping[str, tuple[str, str]] = {
    "tensor_tensor": ("data1", "data2"),
    "tensor_tensor_scan": ("data0", "data1"),
    "scalar_tensor_tensor": ("data", "operand1"),
    "tensor_copy_predicated": ("src", "predicate"),
    "select_reduce": ("on_true", "predicate"),
}


def target(program: Program) -> Iterator[Violation]:
    """AWS publishes the chip's memory sizes, and the chip has the logical-core configuration."""
    if program.target.chip not in CHIPS:
        yield Violation(program.name, f"a program for {program.target.chip}", ", ".join(CHIPS))
        return
    chip = program.target.chip_spec
    if not chip.core.is_published:
        yield Violation(program.name, f"a program for {chip.name}", "NeuronCore-v2 or later")
    if program.target.lnc not in chip.allowed_lncs:
        allowed = ", ".join(map(str, chip.allowed_lncs))
        yield Violation(program.name, f"LNC {program.target.lnc} on {chip.name}", allowed)


def generation(site: Site) -> Iterator[Complaint]:
    """The generation has the instruction and the features that its fields request."""
    instruction = site.instruction
    for what, since in _needs(instruction):
        if site.version < since:
            yield f"{what} on {site.core.name}", f"NeuronCore-v{since} or later"


def _needs(instruction: Instruction) -> Iterator[tuple[str, int]]:
    yield instruction.mnemonic, SINCE.get(instruction.mnemonic, 2)
    if instruction.engine is not None:
        what = f"{instruction.mnemonic} on {instruction.engine.value}"
        yield what, _ENGINE_SINCE.get((instruction.mnemonic, instruction.engine), 2)
    if isinstance(instruction, Matmul) and instruction.perf_mode is PerformanceMode.DOUBLE_ROW:
        yield "double row", 3
    if isinstance(instruction, Activate | ActivateReduce):
        yield "a constant bias", 3 if isinstance(instruction.bias, Immediate) else 2
    if getattr(instruction, "descriptors", None) is DescriptorMode.HARDWARE:
        yield "descriptors made by hardware", 3
    if getattr(instruction, "priority", None) is not None:
        yield "priorities of transfers", 4


def engine(site: Site) -> Iterator[Complaint]:
    """The engine supports the instruction and its operators."""
    instruction = site.instruction
    if instruction.engine is None:
        return
    if instruction.engine not in instruction.engines:
        actual = f"{instruction.mnemonic} on {instruction.engine.value}"
        yield actual, engine_names(instruction.engines)
    is_power = isinstance(instruction, TensorTensor) and instruction.op is AluOp.POWER
    if is_power and instruction.engine is not Engine.GPSIMD:
        yield f"power on {instruction.engine.value}", Engine.GPSIMD.value
    if isinstance(instruction, TensorScalar):
        ops = (instruction.op0, instruction.op1)
        allowed = _TENSOR_SCALAR.get((site.version, instruction.engine))
        if allowed is not None and ops not in allowed:
            names = ", ".join(op.value if op else "nothing" for op in ops)
            yield f"operators {names} on {instruction.engine.value}", "other ones, or vector"


_GPSIMD_OPS = ((AluOp.RSQRT, None),)
_SCALAR_OPS = (
    (AluOp.MULTIPLY, AluOp.ADD),
    (AluOp.MULTIPLY, None),
    (AluOp.ADD, None),
)
_TENSOR_SCALAR: Mapping[tuple[int, Engine], tuple[tuple[AluOp, AluOp | None], ...]] = {
    **{(version, Engine.GPSIMD): _GPSIMD_OPS for version in (2, 3, 4)},
    (3, Engine.SCALAR): _SCALAR_OPS,
}
"""Operators of `tensor_scalar` on engines that support only some."""


def memories(site: Site) -> Iterator[Complaint]:
    """Engines access SBUF, Vector and Scalar also PSUM; DMA accesses HBM and SBUF."""
    instruction = site.instruction
    if isinstance(instruction, Host):
        return
    for name, access in site.accesses():
        general = _BY_ENGINE.get(instruction.engine, _ON_CHIP) if site.is_compute else _HBM_SBUF
        allowed = _MEMORIES.get((instruction.mnemonic, name), general)
        if access.memory not in allowed:
            names = " or ".join(memory.value for memory in allowed)
            yield f"{name} of {instruction.mnemonic} in {access.memory.value}", names
    pair = _NOT_BOTH_IN_PSUM.get(instruction.mnemonic, ())
    held = [access.memory for name, access in site.accesses() if name in pair]
    if held == [Memory.PSUM, Memory.PSUM]:
        yield f"{' and '.join(pair)} both in psum", "one of them in sbuf"


def descriptors(site: Site) -> Iterator[Complaint]:
    """Static descriptors use no registers; hardware descriptors are started by Sync or Scalar."""
    instruction = site.instruction
    if not isinstance(instruction, DmaInstruction):
        return
    mode: DescriptorMode | None = getattr(instruction, "descriptors", None)
    dynamic = any(isinstance(access.offset, RegisterOffset) for access in instruction.accesses())
    if dynamic and mode is DescriptorMode.STATIC:
        yield "an address from a register with static descriptors", "swdge or hwdge"
    starters = _STARTERS.get(mode, instruction.engines)
    if instruction.engine not in starters:
        yield f"{mode.value if mode else 'transfer'} started elsewhere", engine_names(starters)


_STARTERS: Mapping[DescriptorMode | None, tuple[Engine, ...]] = {
    DescriptorMode.HARDWARE: (Engine.SYNC, Engine.SCALAR),
    DescriptorMode.SOFTWARE: (Engine.GPSIMD,),
}


def queues(site: Site) -> Iterator[Complaint]:
    """A DMA queue is a ring of the DMA engines; priorities are 0 to 3."""
    instruction = site.instruction
    if isinstance(instruction, DmaInstruction):
        rings = site.core.dma.rings_per_engine
        if not 0 <= instruction.queue < rings:
            yield f"queue {instruction.queue}", f"0 to {rings - 1}"
    priority = getattr(instruction, "priority", None)
    if priority is not None and not 0 <= priority <= 3:
        yield f"priority {priority}", "0 to 3"


def pairs_of_cores(site: Site) -> Iterator[Complaint]:
    """Barriers and exchanges between cores need two physical cores per logical core."""
    instruction = site.instruction
    if not isinstance(instruction, CoreBarrier | SendReceive):
        return
    if site.program.target.lnc != 2:
        yield f"{instruction.mnemonic} at LNC {site.program.target.lnc}", "LNC 2"
    if isinstance(instruction, CoreBarrier):
        if instruction.cores != (0, 1):
            yield f"cores {instruction.cores}", "0 and 1"
        return
    sent_to, got_from = instruction.send_to_rank, instruction.recv_from_rank
    if sent_to != got_from or sent_to not in (0, 1):
        actual = f"sends to core {sent_to} and receives from core {got_from}"
        yield actual, "0 or 1, the same for both, as each core sends to one and gets from one"
