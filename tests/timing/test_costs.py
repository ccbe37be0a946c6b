"""Cycles of instructions against NKI ISA, edition 2.26, and the architecture guides."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronjax.formats import BFLOAT16, FLOAT32, format_named
from neuronjax.machine.chips import CHIPS
from neuronjax.machine.specs import Engine
from neuronjax.program.dma import DmaCopy, DmaGather, DmaTranspose
from neuronjax.program.element_types import ElementType, element_type_named
from neuronjax.program.gpsimd_engine import AffineSelect, CustomOp, Iota, TopK
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Dim, Immediate, Memory, whole
from neuronjax.program.operators import (
    Activation,
    AluOp,
    CustomFunction,
    DescriptorMode,
    PerformanceMode,
)
from neuronjax.program.program import Program, Target
from neuronjax.program.scalar_engine import Activate, ActivateReduce
from neuronjax.program.table import INSTRUCTIONS
from neuronjax.program.tensor_engine import Matmul, MatmulMX
from neuronjax.program.vector_engine import (
    BatchNormAggregate,
    CopyPredicated,
    Exponential,
    Max8,
    Memset,
    Reciprocal,
    ScalarTensorTensor,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
    TensorTensorScan,
)
from neuronjax.program.walk import instructions
from neuronjax.timing.calibration import CALIBRATION
from neuronjax.timing.cost import Cost, Transfer
from neuronjax.timing.platform import Platform
from neuronjax.timing.table import COSTS, cost_of
from tests.program.strategies import FEW, single

FP8 = format_named("float8_e4m3")
PACKED = element_type_named("float8_e4m3fn_x4")
N = 1000


def platform(chip: str = "trainium1") -> Platform:
    return Platform.of(Program(name="p", target=Target(chip), body=()), busy_cores=1)


def sbuf(dtype: ElementType = FLOAT32, free: int = N, partitions: int = 128) -> Access:
    return tile(Memory.SBUF, dtype, free, partitions)


def psum(dtype: ElementType = FLOAT32, free: int = N) -> Access:
    return tile(Memory.PSUM, dtype, free, 128)


def tile(memory: Memory, dtype: ElementType, free: int, partitions: int) -> Access:
    return whole(Buffer(name="t", memory=memory, dtype=dtype, shape=(partitions, free)))


def hbm(dtype: ElementType, *shape: int) -> Access:
    return whole(Buffer(name="h", memory=Memory.HBM, dtype=dtype, shape=shape))


def strided(dtype: ElementType, stride: int) -> Access:
    buffer = Buffer(name="s", memory=Memory.SBUF, dtype=dtype, shape=(128, stride * N))
    return Access(buffer=buffer, partitions=128, dims=(Dim(stride, N),))


def cycles(each: Instruction, chip: str) -> float:
    """Cycles that the elements take, without what an access adds."""
    cost = cost_of(each, platform(chip))
    assert each.engine is not None
    clock = platform(chip).core.clock_hz(each.engine)
    return cost.issue_ns * clock / 1e9 - CALIBRATION.exposed_access_cycles


def test_every_instruction_has_a_rule() -> None:
    assert set(COSTS) == set(INSTRUCTIONS.values())


def pair(a: Access, b: Access, op: AluOp = AluOp.ADD) -> TensorTensor:
    return TensorTensor(dst=a, data1=a, data2=b, op=op)


def copy(dst: Access, src: Access) -> TensorCopy:
    return TensorCopy(dst=dst, src=src)


F, B, E, P = sbuf(), sbuf(BFLOAT16), sbuf(FP8), psum()
ONE_WORD = sbuf(FLOAT32, 1)
ELEMENTWISE = [
    # one operand in PSUM, the other in SBUF: N; both in SBUF: 2N, or N for BF16 add
    (pair(F, P), {"trainium1": N, "trainium2": N}),
    (pair(F, F), {"trainium1": 2 * N, "trainium2": N}),
    (pair(B, B), {"trainium1": N, "trainium2": N / 2}),
    (pair(B, B, AluOp.MAXIMUM), {"trainium1": 2 * N, "trainium2": N / 2}),
    # performance modes of version 3: four times, two times with PSUM or strides
    (copy(B, B), {"trainium1": N, "trainium2": N / 4, "trainium3": N / 4}),
    (copy(F, F), {"trainium1": N, "trainium2": N}),
    # FP8 has a wider data path from version 4 on; casts take two elements in a cycle of version 3
    (copy(E, E), {"trainium1": N, "trainium2": N / 2, "trainium3": N / 4}),
    (copy(B, E), {"trainium1": N, "trainium2": N / 2, "trainium3": N / 4}),
    (copy(E, B), {"trainium1": N, "trainium2": N / 2, "trainium3": N / 4}),
    (copy(E, F), {"trainium2": N, "trainium3": N}),
    (pair(E, E), {"trainium2": N, "trainium3": N / 2}),
    (copy(B, psum(BFLOAT16)), {"trainium1": N, "trainium2": N / 2}),
    (copy(strided(BFLOAT16, 2), B), {"trainium1": N, "trainium2": N / 2}),
    # strides above 16 bytes halve the speed of the interface
    (copy(strided(FLOAT32, 8), F), {"trainium1": 2 * N, "trainium2": 2 * N}),
    (
        TensorScalar(dst=B, data=B, op0=AluOp.ADD, operand0=Immediate(1.0)),
        {"trainium1": N, "trainium2": N / 4},
    ),
    (
        ScalarTensorTensor(
            dst=F, data=F, op0=AluOp.ADD, operand0=Immediate(1.0), op1=AluOp.ADD, operand1=F
        ),
        {"trainium1": 2 * N, "trainium2": N},
    ),
    (TensorReduce(dst=ONE_WORD, op=AluOp.ADD, data=F), {"trainium1": N}),
    (TensorReduce(dst=sbuf(BFLOAT16, 1), op=AluOp.ADD, data=B), {"trainium1": N / 2}),
    (Memset(dst=B, value=Immediate(0.0)), {"trainium1": N / 2}),
    (Memset(dst=B, value=Immediate(1.0)), {"trainium1": N}),
    (Reciprocal(dst=F, data=F), {"trainium1": 2 * N, "trainium2": 8 * N}),  # 2: as measured
    (BatchNormAggregate(dst=sbuf(FLOAT32, 2), data=F), {"trainium1": 13 * N / 3}),
    (Max8(dst=sbuf(FLOAT32, 8), src=F), {"trainium1": N}),
    (CopyPredicated(dst=F, src=F, predicate=F), {"trainium1": 2 * N}),
    (CopyPredicated(dst=F, src=P, predicate=F), {"trainium1": N}),
    (
        TensorTensorScan(
            dst=F, data0=F, data1=F, initial=Immediate(0.0), op0=AluOp.ADD, op1=AluOp.ADD
        ),
        {"trainium1": 2 * N},
    ),
    (Exponential(dst=F, src=F), {"trainium3": N / 4}),
    (Activate(dst=F, op=Activation.EXP, data=F), {"trainium1": N, "trainium2": N}),
    (Activate(dst=B, op=Activation.EXP, data=B), {"trainium2": N, "trainium3": N / 2}),
    (
        ActivateReduce(dst=F, op=Activation.EXP, data=F, reduce_res=ONE_WORD),
        {"trainium1": N + 64},
    ),
]


@pytest.mark.parametrize(
    ("each", "chip", "expected"),
    [(each, chip, expected) for each, row in ELEMENTWISE for chip, expected in row.items()],
    ids=lambda value: value.mnemonic if isinstance(value, Instruction) else None,
)
def test_cycles_of_elements(each: Instruction, chip: str, expected: float) -> None:
    assert cycles(each, chip) == pytest.approx(expected)


def test_no_instruction_is_shorter_than_the_interval() -> None:
    one = sbuf(FLOAT32, 1)
    cost = cost_of(TensorCopy(dst=one, src=one), platform())
    assert cost.issue_ns == pytest.approx(64 / 1.12)


@pytest.mark.parametrize("partitions", [1, 64, 128])
def test_partitions_are_free(partitions: int) -> None:
    few = sbuf(FLOAT32, N, partitions)
    assert cost_of(copy(few, few), platform()) == cost_of(copy(F, F), platform())


GPSIMD = [
    (Iota(dst=F, pattern=(Dim(1, N),)), 150 + N),
    (
        AffineSelect(
            dst=F, pattern=(Dim(1, N),), channel_multiplier=1, on_true=F, on_false=Immediate(0.0)
        ),
        150 + N,
    ),
    (TopK(values=sbuf(BFLOAT16, 8), indices=sbuf(FLOAT32, 8), src=B, n=1600), 150 + 400 + 8),
]


@pytest.mark.parametrize(("each", "expected"), GPSIMD, ids=lambda value: type(value).__name__)
def test_cycles_of_gpsimd(each: Instruction, expected: float) -> None:
    assert cost_of(each, platform()).issue_ns * 1.4 == pytest.approx(expected)


def test_custom_operators_cost_more_the_more_they_do() -> None:
    def cost(function: CustomFunction, dtype: str) -> float:
        tensor = sbuf(element_type_named(dtype))
        each = CustomOp(dst=tensor, function=function, srcs=(tensor, tensor))
        return cost_of(each, platform("trainium2")).issue_ns

    steps = [
        cost(CustomFunction.ADD, "int32"),
        cost(CustomFunction.ADD, "int64"),
        cost(CustomFunction.DIVIDE, "int64"),
        cost(CustomFunction.POWER, "int64"),
    ]
    assert all(a < b for a, b in pairwise(steps))


def matmul(dtype: ElementType, moving: int, **fields: object) -> Matmul:
    return Matmul(
        dst=psum(FLOAT32, moving),
        stationary=sbuf(dtype, 128),
        moving=sbuf(dtype, moving),
        **fields,  # type: ignore[arg-type]
    )


PRODUCTS = [
    (matmul(BFLOAT16, 512), "trainium1", 512),
    (matmul(BFLOAT16, 16), "trainium1", 64),
    (matmul(FLOAT32, 512), "trainium2", 4 * 512),
    (matmul(FLOAT32, 512, moving_onezero=True), "trainium2", 2 * 512),
    (matmul(FLOAT32, 512, is_transpose=True), "trainium1", 4 * 512),
    (matmul(FLOAT32, 512, is_transpose=True), "trainium2", 2 * 512),
    (matmul(FP8, 512), "trainium2", 512),
]


@pytest.mark.parametrize(("each", "chip", "expected"), PRODUCTS)
def test_cycles_of_products(each: Matmul, chip: str, expected: float) -> None:
    cost = cost_of(each, platform(chip))
    clock = platform(chip).core.tensor.clock_hz
    assert cost.issue_ns * clock / 1e9 == pytest.approx(expected)
    assert cost.flops == 2 * 128 * 128 * each.moving.free_elements


@pytest.mark.parametrize(
    ("name", "chip", "each"),
    [
        ("bfloat16", "trainium1", matmul(BFLOAT16, 512)),
        ("float32", "trainium1", matmul(FLOAT32, 512)),
        ("bfloat16", "trainium2", matmul(BFLOAT16, 512)),
        ("float32", "trainium2", matmul(FLOAT32, 512)),
        (
            "float8_e4m3",
            "trainium2",
            Matmul(
                dst=psum(FLOAT32, 512),
                stationary=sbuf(FP8, 256),
                moving=sbuf(FP8, 1024),
                perf_mode=PerformanceMode.DOUBLE_ROW,
            ),
        ),
        (
            "float8_e4m3fn_x4",
            "trainium3",
            MatmulMX(
                dst=psum(FLOAT32, 512),
                stationary=sbuf(PACKED, 128),
                moving=sbuf(PACKED, 512),
                stationary_scale=sbuf(element_type_named("float8_e8m0fnu"), 128),
                moving_scale=sbuf(element_type_named("float8_e8m0fnu"), 512),
            ),
        ),
    ],
)
def test_full_products_reach_the_published_peak(name: str, chip: str, each: Instruction) -> None:
    cost = cost_of(each, platform(chip))
    tflops = cost.flops / cost.issue_ns / 1e3
    assert tflops == pytest.approx(platform(chip).core.tensor.published_tflops[name], rel=0.025)


def load(dtype: ElementType, *shape: int, chip: str = "trainium2") -> Transfer:
    each = DmaCopy(dst=sbuf(dtype, shape[1], shape[0]), src=hbm(dtype, *shape))
    transfer = cost_of(each, platform(chip)).transfer
    assert transfer is not None
    return transfer


CURVE = {32: 1.2, 64: 2.6, 128: 5.0, 256: 10.3, 512: 20.6, 1024: 42.4, 2048: 81.3, 4096: 96.6,
         8192: 98.3, 16384: 99.0}  # fmt: skip
"""nki/img/overviews/nki-dma-intro-1.jpg: bytes per partition -> % of the rate at 32 KiB."""


def rate(nbytes: int) -> float:
    """Bytes/ns of transfers of one queue, one after the other, at bytes per partition."""
    transfer = load(FLOAT32, 128, nbytes // 4)
    return transfer.nbytes / max(transfer.interval_ns, transfer.engine_ns)


@pytest.mark.parametrize(("nbytes", "percent"), CURVE.items())
def test_dma_follows_the_published_curve(nbytes: int, percent: float) -> None:
    assert 100 * rate(nbytes) / rate(32_768) == pytest.approx(percent, rel=0.05, abs=0.5)


def test_short_runs_are_slow() -> None:
    rows = load(BFLOAT16, 128, 512)
    columns = cost_of(
        DmaCopy(
            dst=sbuf(BFLOAT16, 512),
            src=Access(buffer=hbm(BFLOAT16, 512, 128).buffer, dims=(Dim(1, 128), Dim(128, 512))),
        ),
        platform("trainium2"),
    ).transfer
    assert columns is not None
    assert columns.nbytes == rows.nbytes
    assert columns.engine_ns > 20 * rows.engine_ns


def test_transposes_of_narrow_elements_run_at_nine_tenths() -> None:
    src = hbm(BFLOAT16, 128, 4096)
    dst = sbuf(BFLOAT16, 128 * 32)
    turned = cost_of(DmaTranspose(dst=dst, src=src), platform("trainium2")).transfer
    copied = cost_of(DmaCopy(dst=dst, src=src), platform("trainium2")).transfer
    assert turned is not None
    assert copied is not None
    assert copied.engine_ns / turned.engine_ns == pytest.approx(0.9, abs=0.02)


def test_hardware_descriptors_take_their_generator_and_software_takes_gpsimd() -> None:
    def cost(mode: DescriptorMode, engine: Engine) -> Cost:
        each = DmaCopy(dst=sbuf(), src=hbm(FLOAT32, 128, N), descriptors=mode, engine=engine)
        return cost_of(each, platform("trainium2"))

    hardware = cost(DescriptorMode.HARDWARE, Engine.SYNC)
    software = cost(DescriptorMode.SOFTWARE, Engine.GPSIMD)
    static = cost(DescriptorMode.STATIC, Engine.SYNC)
    assert hardware.transfer is not None
    assert hardware.transfer.generator_ns == 600
    assert hardware.issue_ns == static.issue_ns < software.issue_ns


def test_gathers_cost_by_row() -> None:
    def cost(rows: int, row: int) -> Transfer:
        each = DmaGather(
            dst=sbuf(BFLOAT16, row, rows),
            table=hbm(BFLOAT16, 32_000, row),
            index=sbuf(element_type_named("uint32"), 1, rows),
        )
        transfer = cost_of(each, platform("trainium2")).transfer
        assert transfer is not None
        return transfer

    assert cost(128, 512).nbytes == 128 * 512 * 2
    assert cost(128, 8).engine_ns > cost(128, 512).engine_ns / 16


def test_all_cores_share_the_memory() -> None:
    """Trn1: 410 GB/s for each core, above its DMA engines; copies within HBM need twice."""
    each = DmaCopy(dst=hbm(FLOAT32, 128, 4096), src=hbm(FLOAT32, 128, 4096))
    program = Program(name="p", target=Target("trainium1"), body=())
    alone = cost_of(each, Platform.of(program, busy_cores=1)).transfer
    shared = cost_of(each, Platform.of(program)).transfer
    assert alone is not None
    assert shared is not None
    # Read and written: half of 410 GB/s for all 16 engines; alone they have a stack, 410 as well.
    assert shared.nbytes / shared.engine_ns == pytest.approx(205, rel=0.02)
    assert shared.engine_ns == alone.engine_ns


@pytest.mark.parametrize("chip", ["trainium2", "trainium3"])
def test_neighbours_share_a_stack(chip: str) -> None:
    """Two cores have a stack, and copies within HBM read and write it."""
    each = DmaCopy(dst=hbm(FLOAT32, 128, 4096), src=hbm(FLOAT32, 128, 4096))
    program = Program(name="p", target=Target(chip), body=())
    stack = CHIPS[chip].hbm.bandwidth / CHIPS[chip].hbm.stacks / 1e9
    for busy in (2, 3, None):
        shared = cost_of(each, Platform.of(program, busy_cores=busy)).transfer
        assert shared is not None
        assert 2 * 2 * shared.nbytes / shared.engine_ns == pytest.approx(stack, rel=0.03)
    alone = cost_of(each, Platform.of(program, busy_cores=1)).transfer
    assert alone is not None
    assert 2 * alone.nbytes / alone.engine_ns <= stack


@pytest.mark.parametrize("kind", INSTRUCTIONS.values(), ids=lambda kind: kind.mnemonic)
@FEW
@given(data=st.data())
def test_rules_answer_for_every_operand(kind: type[Instruction], data: st.DataObject) -> None:
    program = data.draw(single(kind))
    (each,) = (found for _, found in instructions(program))
    if kind.engines and each.engine not in kind.engines:
        each = dataclasses.replace(each, engine=kind.engines[0])
    cost = cost_of(each, Platform.of(program))
    assert cost.instructions >= 1
    for ns in (cost.issue_ns, cost.latency_ns, cost.spread_ns):
        assert 0 <= ns < math.inf
