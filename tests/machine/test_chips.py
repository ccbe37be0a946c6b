"""Chip and core constants against the figures that AWS prints (aws-neuron-sdk, release 2.32)."""

import dataclasses
import pickle

import pytest

from neuronjax.machine.chips import (
    CHIPS,
    INFERENTIA1,
    INFERENTIA2,
    NC_V1,
    NC_V2,
    NC_V3,
    NC_V4,
    TRAINIUM1,
    TRAINIUM2,
    TRAINIUM3,
)
from neuronjax.machine.specs import ChipSpec, CoreSpec, DmaSpec, Engine, HbmSpec, MemorySpec

GHZ = {
    NC_V2: {"tensor": 2.8, "vector": 1.12, "scalar": 1.4, "gpsimd": 1.4, "sync": 1.4},
    NC_V3: {"tensor": 2.4, "vector": 0.96, "scalar": 1.2, "gpsimd": 1.2, "sync": 1.2},
    NC_V4: {"tensor": 2.4, "vector": 1.2, "scalar": 1.2, "gpsimd": 1.2, "sync": 1.2},
}


@pytest.mark.parametrize("core", GHZ, ids=lambda core: core.name)
def test_engine_clocks(core: CoreSpec) -> None:
    assert {e.value: core.clock_hz(e) / 1e9 for e in Engine} == GHZ[core]


@pytest.mark.parametrize(
    ("core", "sbuf_mib", "usable", "psum_mib"),
    [(NC_V2, 24, 180_224, 2), (NC_V3, 28, 212_984, 2), (NC_V4, 32, 245_752, 2)],
)
def test_on_chip_memory(core: CoreSpec, sbuf_mib: int, usable: int, psum_mib: int) -> None:
    assert core.sbuf.size_bytes == sbuf_mib * 2**20
    assert core.sbuf.usable_partition_bytes == usable
    assert core.sbuf.usable_bytes == 128 * usable
    assert core.psum.size_bytes == psum_mib * 2**20
    assert core.psum.banks == 8
    assert core.psum.bank_bytes == 2048  # 512 FP32


@pytest.mark.parametrize(
    ("core", "dtype", "tflops"),
    [
        (NC_V1, "bfloat16", 16),
        (NC_V2, "bfloat16", 91.75),
        (NC_V2, "float8_e4m3", 91.75),
        (NC_V2, "float32", 22.9),
        (NC_V3, "float8_e4m3", 158),
        (NC_V3, "bfloat16", 79),
        (NC_V3, "tfloat32", 79),
        (NC_V3, "float32", 20),
        (NC_V4, "float8_e4m3fn_x4", 315),
        (NC_V4, "float4_e2m1fn_x4", 315),
        (NC_V4, "float16", 79),
        (NC_V4, "float32", 20),
    ],
)
def test_tensor_engine_peak(core: CoreSpec, dtype: str, tflops: float) -> None:
    assert core.tensor.flops(dtype) / 1e12 == pytest.approx(tflops, rel=0.025)


@pytest.mark.parametrize(("core", "tflops"), [(NC_V2, 0), (NC_V3, 316), (NC_V4, 315)])
def test_sparse_peak(core: CoreSpec, tflops: float) -> None:
    assert core.tensor.sparse_flops / 1e12 == pytest.approx(tflops, rel=0.01)


@pytest.mark.parametrize(
    ("core", "sustained", "peak", "aggregate"),
    [(NC_V2, 17, 27.2, 272), (NC_V3, 23, 27.2, 368), (NC_V4, 33, 38.4, 528)],
)
def test_dma(core: CoreSpec, sustained: float, peak: float, aggregate: float) -> None:
    assert (core.dma.engines, core.dma.rings_per_engine) == (16, 16)
    assert core.dma.engine_bandwidth / 1e9 == sustained
    assert core.dma.engine_peak_bandwidth / 1e9 == peak
    assert core.dma.bandwidth / 1e9 == aggregate


@pytest.mark.parametrize(
    ("core", "engine", "dtype", "elements"),
    [
        (NC_V2, Engine.VECTOR, "bfloat16", 128),
        (NC_V3, Engine.VECTOR, "bfloat16", 512),
        (NC_V3, Engine.VECTOR, "float32", 256),
        (NC_V3, Engine.SCALAR, "bfloat16", 128),
        (NC_V4, Engine.VECTOR, "float8_e4m3", 512),
        (NC_V4, Engine.SCALAR, "float8_e5m2", 256),
        (NC_V4, Engine.SCALAR, "float32", 128),
        (NC_V4, Engine.GPSIMD, "float32", 128),
    ],
)
def test_data_paths(core: CoreSpec, engine: Engine, dtype: str, elements: int) -> None:
    assert core.engines[engine].elements_per_cycle(dtype) == elements


@dataclasses.dataclass(frozen=True)
class Printed:
    """One column of the per-chip table."""

    cores: int
    hbm_gib: int
    hbm_tb_per_s: float
    sbuf_mib: int
    dma_engines: int
    dma_tb_per_s: float
    cc_cores: int
    bf16_tflops: float
    fp32_tflops: float


PRINTED = {
    INFERENTIA2: Printed(2, 32, 0.82, 48, 32, 1.0, 6, 190, 47.5),
    TRAINIUM1: Printed(2, 32, 0.82, 48, 32, 1.0, 6, 190, 47.5),
    TRAINIUM2: Printed(8, 96, 2.9, 224, 128, 3.5, 16, 667, 181),
    TRAINIUM3: Printed(8, 144, 4.9, 256, 128, 4.9, 16, 671, 183),
}


@pytest.mark.parametrize("chip", PRINTED, ids=lambda chip: chip.name)
def test_chip_column(chip: ChipSpec) -> None:
    assert chip.published_dma_bandwidth is not None
    found = Printed(
        chip.cores,
        chip.hbm.capacity_bytes // 2**30,
        chip.hbm.bandwidth / 1e12,
        chip.sbuf_bytes // 2**20,
        chip.dma_engines,
        chip.published_dma_bandwidth / 1e12,
        chip.cc_cores,
        chip.published_tflops["bfloat16"],
        chip.published_tflops["float32"],
    )
    assert found == PRINTED[chip]


def test_inferentia1_has_what_is_published() -> None:
    assert INFERENTIA1.cores == 4
    assert INFERENTIA1.hbm.capacity_bytes == 8 * 2**30
    assert INFERENTIA1.published_tflops == {"bfloat16": 64, "float16": 64, "int8": 128}
    assert not NC_V1.is_published
    with pytest.raises(KeyError):
        NC_V1.clock_hz(Engine.GPSIMD)


@pytest.mark.parametrize("core", [NC_V2, NC_V3, NC_V4], ids=lambda core: core.name)
def test_later_cores_are_published(core: CoreSpec) -> None:
    assert core.is_published


@pytest.mark.parametrize(
    ("chip", "lnc", "kind", "cores", "hbm_gib"),
    [
        (INFERENTIA1, 1, "NC_v1", 4, 2),
        (INFERENTIA2, 1, "NC_v2", 2, 16),
        (TRAINIUM1, 1, "NC_v2", 2, 16),
        (TRAINIUM2, 1, "NC_v3", 8, 12),
        (TRAINIUM2, 2, "NC_v3d", 4, 24),
        (TRAINIUM3, 1, "NC_v4", 8, 18),
        (TRAINIUM3, 2, "NC_v4d", 4, 36),
    ],
)
def test_logical_cores(chip: ChipSpec, lnc: int, kind: str, cores: int, hbm_gib: int) -> None:
    assert chip.device_kinds[lnc] == kind
    assert chip.logical_cores(lnc) == cores
    assert chip.logical_core_hbm_bytes(lnc) == hbm_gib * 2**30


def test_two_physical_cores_share_a_stack_of_trainium2() -> None:
    assert [TRAINIUM2.hbm_stack(core) for core in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert TRAINIUM2.hbm.stack_bytes == 24 * 2**30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"default_lnc": 3}, "default LNC 3"),
        ({"device_kinds": {3: "x"}, "default_lnc": 3}, "does not divide 8 cores"),
        ({"published_dma_bandwidth": 10**12}, "DMA bandwidth"),
        ({"published_tflops": {"bfloat16": 900}}, "900 published"),
    ],
)
def test_a_chip_checks_its_arithmetic(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TRAINIUM2, **change)


def test_parts_check_their_arithmetic() -> None:
    with pytest.raises(ValueError, match="usable"):
        MemorySpec(partitions=128, partition_bytes=16, usable_partition_bytes=17)
    with pytest.raises(ValueError, match="stacks"):
        HbmSpec(capacity_bytes=10, stacks=4, bandwidth=1)
    with pytest.raises(ValueError, match="sustained"):
        DmaSpec(engines=1, rings_per_engine=1, engine_bandwidth=2, engine_peak_bandwidth=1)
    with pytest.raises(ValueError, match="TFLOPS from the clock"):
        dataclasses.replace(NC_V3.tensor, clock_hz=1_400_000_000)
    with pytest.raises(ValueError, match="lanes"):
        dataclasses.replace(NC_V3.vector, width=200)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)
def test_records_are_values(chip: ChipSpec) -> None:
    copy = pickle.loads(pickle.dumps(chip))
    assert copy == chip
    assert hash(copy) == hash(chip)
    with pytest.raises(dataclasses.FrozenInstanceError):
        chip.cores = 1  # type: ignore[misc]
