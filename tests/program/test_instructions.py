"""What every instruction reads and writes, by the pages of NKI ISA."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from neuronjax.formats import FLOAT32, format_named
from neuronjax.machine.specs import Engine
from neuronjax.program.affine import First, affine
from neuronjax.program.dma import DmaGather
from neuronjax.program.field_types import field_hints, leaves
from neuronjax.program.instruction import Instruction, Role, Semaphore, Wait
from neuronjax.program.operand import (
    Access,
    Buffer,
    Dim,
    Immediate,
    Memory,
    Register,
    RegisterOffset,
)
from neuronjax.program.operators import Activation, AluOp, OutOfBounds
from neuronjax.program.table import INSTRUCTIONS
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.vector_engine import StreamShuffle, TensorScalar

# mnemonic: written < read. What is in both is updated.
ROLES = """
nc_matmul: dst < stationary moving
nc_matmul_mx: dst < stationary moving stationary_scale moving_scale
tensor_transpose: dst < data
tensor_tensor: dst < data1 data2
tensor_scalar: dst < data operand0 operand1
scalar_tensor_tensor: dst < data operand0 operand1
tensor_reduce: dst < data
tensor_scalar_reduce: dst reduce_res < data operand0 reduce_init
tensor_scalar_cumulative: dst < src imm0 imm1
tensor_tensor_scan: dst < data0 data1 initial
tensor_copy: dst < src
tensor_copy_predicated: dst < src predicate dst
select_reduce: dst reduce_res < predicate on_true on_false
range_select: dst reduce_res < on_true bound0 bound1
memset: dst <
bn_stats: dst < data
bn_aggr: dst < data
reciprocal: dst < data
exponential: dst reduce_res < src max_value reduce_init
max8: dst < src
nc_find_index8: dst < data vals
nc_match_replace8: dst dst_idx < data vals
nc_stream_shuffle: dst < src
vector_transpose: dst < data
quantize_mx: dst dst_scale < src
activation: dst reduce_res < data bias scale
activation_reduce: dst reduce_res < data bias scale
activate2: dst reduce_res < data imm0 imm1 relu_param
iota: dst <
affine_select: dst < on_true
tensor_partition_reduce: dst < data
local_gather: dst < src index
nc_n_gather: dst < data indices
nonzero_with_count: dst < src
topk: values indices < src
sequence_bounds: dst < segment_ids
custom_op: dst < srcs
core_barrier: data < data
rng: dst <
rand2: dst < low high
rand_set_state: < seeds
rand_get_state: dst <
set_rng_seed: < seed
dropout: dst < data prob
dma_copy: dst < src
dma_gather: dst < table index
dma_scatter: table < table src index
dma_transpose: dst < src
dma_gather_transpose: dst < table index
dma_compute: dst < srcs
sendrecv: dst < src
device_print: < src
all_reduce: dsts < srcs
all_gather: dsts < srcs
reduce_scatter: dsts < srcs
all_to_all: dsts < srcs
collective_permute: dsts < srcs
collective_permute_implicit: dsts < srcs
all_gather_v: dsts counts < srcs counts
all_to_all_v: dsts counts < srcs counts
rank_id: dst <
register_load: dst < src
register_store: dst < src
register_move: dst < src
register_alu: dst < left right
semaphore_event: <
host: dsts < srcs
"""
EXPECTED = {
    name: tuple(set(side.split()) for side in rest.split("<"))
    for name, rest in (row.split(":") for row in ROLES.strip().splitlines())
}
PLAIN = {int: 1, str: "f", bool: False, tuple: ()}


def tile(name: str) -> Access:
    buffer = Buffer(name=name, memory=Memory.SBUF, dtype=FLOAT32, shape=(32, 8))
    return Access(buffer=buffer, partitions=32, dims=(Dim(1, 8),))


def example(kind: type[Instruction]) -> Instruction:
    """The instruction with an access, else a register, in every field that takes one."""
    values = {}
    for field in dataclasses.fields(kind):
        hint = field_hints(kind)[field.name]
        kinds = leaves(hint)
        is_tuple = typing.get_origin(hint) is tuple
        if Access in kinds:
            values[field.name] = (tile(field.name),) if is_tuple else tile(field.name)
        elif Register in kinds:
            values[field.name] = Register(field.name)
        elif field.default is dataclasses.MISSING:
            options = list(kinds[0]) if hasattr(kinds[0], "__members__") else None
            plain = PLAIN.get(kinds[0], Immediate(0.0))
            values[field.name] = options[0] if options else () if is_tuple else plain
    return kind(**values)


def names(operands: tuple[Access | Register, ...]) -> set[str]:
    return {each.buffer.name if isinstance(each, Access) else each.name for each in operands}


def test_every_instruction_has_a_row() -> None:
    assert EXPECTED.keys() == INSTRUCTIONS.keys()


@pytest.mark.parametrize("mnemonic", INSTRUCTIONS)
def test_reads_and_writes(mnemonic: str) -> None:
    writes, reads = EXPECTED[mnemonic]
    instruction = example(INSTRUCTIONS[mnemonic])
    assert names(instruction.writes()) == writes
    assert names(instruction.reads()) == reads


@pytest.mark.parametrize("mnemonic", INSTRUCTIONS)
def test_operands_can_be_exchanged(mnemonic: str) -> None:
    def longer(operand: object) -> object:
        if isinstance(operand, Access):
            return tile(operand.buffer.name + "_")
        return Register(operand.name + "_") if isinstance(operand, Register) else operand

    instruction = example(INSTRUCTIONS[mnemonic])
    changed = instruction.with_operands(longer)
    assert instruction.with_operands(lambda operand: operand) == instruction
    assert names(changed.reads()) == {f"{name}_" for name in names(instruction.reads())}
    assert names(changed.writes()) == {f"{name}_" for name in names(instruction.writes())}


@pytest.mark.parametrize("mnemonic", INSTRUCTIONS)
def test_records(mnemonic: str) -> None:
    kind = INSTRUCTIONS[mnemonic]
    instruction = example(kind)
    assert hash(instruction) == hash(example(kind))
    assert kind.page
    assert kind.__doc__
    assert instruction.engine in (kind.engines or (None,))
    with pytest.raises(dataclasses.FrozenInstanceError):
        instruction.waits = ()


@pytest.mark.parametrize(
    ("instruction", "role"),
    [
        (Matmul(dst=tile("d"), stationary=tile("s"), moving=tile("m")), Role.WRITE),
        (Matmul(dst=tile("d"), stationary=tile("s"), moving=tile("m"), start=False), Role.UPDATE),
        (
            Matmul(dst=tile("d"), stationary=tile("s"), moving=tile("m"), start=First(("k",))),
            Role.UPDATE,
        ),
        (DmaGather(dst=tile("d"), table=tile("t"), index=tile("i")), Role.WRITE),
        (DmaGather(dst=tile("d"), table=tile("t"), index=tile("i"), accumulate=True), Role.UPDATE),
        (
            DmaGather(
                dst=tile("d"), table=tile("t"), index=tile("i"), out_of_bounds=OutOfBounds.SKIP
            ),
            Role.UPDATE,
        ),
        (StreamShuffle(dst=tile("d"), src=tile("s"), mask=tuple(range(32))), Role.WRITE),
        (StreamShuffle(dst=tile("d"), src=tile("s"), mask=(255,) * 32), Role.UPDATE),
    ],
)
def test_what_flags_make_of_a_result(instruction: Instruction, role: Role) -> None:
    assert [use.role for use in instruction.uses() if use.field == "dst"] == [role]


@pytest.mark.parametrize(
    ("dtype", "onezero", "passes"),
    [("float32", False, 4), ("float32", True, 2), ("bfloat16", False, 1), ("bfloat16", True, 1)],
)
def test_passes_of_a_product(dtype: str, onezero: bool, passes: int) -> None:
    buffer = Buffer(name="s", memory=Memory.SBUF, dtype=format_named(dtype), shape=(32, 8))
    access = Access(buffer=buffer)
    product = Matmul(dst=tile("d"), stationary=access, moving=access, moving_onezero=onezero)
    assert product.fp32_passes == passes


def test_addresses_are_read() -> None:
    register = Register("r")
    dst = dataclasses.replace(tile("d"), offset=RegisterOffset(register, 8))
    instruction = TensorScalar(
        dst=dst, data=tile("x"), op0=AluOp.ADD, operand0=Immediate(1.0), engine=Engine.SCALAR
    )
    assert instruction.reads() == (tile("x"), register)
    assert instruction.engine is Engine.SCALAR


def test_variables_are_those_of_operands_flags_fields_and_waits() -> None:
    product = Matmul(
        dst=dataclasses.replace(tile("d"), slot=affine(i=1)),
        stationary=dataclasses.replace(
            tile("s"), offset=RegisterOffset(Register("r"), 1, affine(j=2))
        ),
        moving=dataclasses.replace(tile("m"), partition=affine(k=32)),
        start=First(("l",)),
        waits=(Wait(Semaphore("s"), affine(3, m=1)),),
    )
    assert product.variables() == set("ijklm")


def test_enumerations_have_the_tables_of_nki() -> None:
    # Neuron docs, "NKI API common fields": 28 operators, 26 functions; bypass is activate2's.
    assert len(AluOp) == 29
    assert len(Activation) == 26
