"""Inferentia1 to Trainium3 as records; every number has its source beside it.

Sources are paths in the public repository aws-neuron/aws-neuron-sdk (release 2.32), shortened so:

    hw/X      about-neuron/arch/neuron-hardware/X.rst
    nki/X     nki/guides/architecture/X.rst
    isa       nki/api/nki/isa/__init__.py
    dma       nki/get-started/about/nki-dma-overview.rst, nki/deep-dives/nki-dma-bandwidth-guide.rst
    profile   tools/neuron-explorer/profile-schema-reference.rst
    lnc       about-neuron/arch/neuron-features/logical-neuroncore-config.rst
    consts    nkigen/mlir/include/nkipy/Transforms/HardwareConstants.h in aws-neuron/nkipy

"Derived" marks a number that follows from others and is printed nowhere. Where two pages disagree,
the number says which one it follows and why.
"""

from collections.abc import Mapping
from fractions import Fraction

from neuronjax.machine.specs import (
    GIB,
    GIGA,
    KIB,
    MIB,
    TERA,
    ChipSpec,
    CoreSpec,
    DmaSpec,
    Engine,
    EngineSpec,
    HbmSpec,
    MemorySpec,
    TensorEngineSpec,
)

_ONE = Fraction(1)
_BF16_RATE = ("bfloat16", "float16", "tfloat32")

# Relative cost is the profiler's "adjusted FLOPs" (profile): FP32 4, FP8 1 on Trn1 and Inf2.
_RATES_V2 = dict.fromkeys((*_BF16_RATE, "float8_e4m3", "float8_e5m2", "float8_e3m4"), _ONE) | {
    "float32": Fraction(1, 4)
}

# FP8 0.5 (profile), with K = 256 per instruction; e3m4 at BF16 rate (both nki/trainium2_arch).
_RATES_V3 = _RATES_V2 | {"float8_e4m3": Fraction(2), "float8_e5m2": Fraction(2)}

# MX 0.25 (profile), K = 512 per instruction. For FP8 without MX scales the profiler says 0.5 while
# nki/trainium3_arch gives every non-MX format the 2×128 BF16 path: the profiler is followed,
# because the double-row mode of v3 is still in isa. e3m4 is gone.
_RATES_V4 = {name: rate for name, rate in _RATES_V3.items() if name != "float8_e3m4"} | {
    "float8_e4m3fn": Fraction(2),
    **dict.fromkeys(("float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"), Fraction(4)),
}

_SHORT = ("bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")
"""Types for which v4 has wider data paths: BF16, FP16 and FP8 (nki/trainium3_arch)."""

_PSUM = MemorySpec(
    partitions=128,  # nki/trainium_inferentia2_arch, the same on v2 to v4
    partition_bytes=16 * KIB,  # same table: 2 MiB
    usable_partition_bytes=16 * KIB,
    banks=8,  # same page: 2 KiB = 512 FP32 each
)
_UNPUBLISHED_MEMORY = MemorySpec(partitions=0, partition_bytes=0, usable_partition_bytes=0)

NC_V1 = CoreSpec(
    name="NeuronCore-v1",
    version=1,
    base_clock_hz=1 * GIGA,  # profile (neuroncore_cycle_count); no page has a clock per engine
    tensor=TensorEngineSpec(
        clock_hz=1 * GIGA,  # the base clock
        rows=128,
        columns=64,  # derived: 16 TFLOPS at 1 GHz are 8,192 cells, arrangement not published
        # FP32 is no operand (hw/neuron-core-v1); INT8 at twice BF16: 128 against 64 per chip.
        rates={"bfloat16": _ONE, "float16": _ONE, "int8": Fraction(2)},
        sparse_rate=Fraction(0),
        published_tflops={"bfloat16": 16},  # hw/neuron-core-v1
    ),
    engines={
        # hw/neuron-core-v1 gives FLOP per cycle, 256 and 512, where later pages give elements.
        Engine.VECTOR: EngineSpec(clock_hz=1 * GIGA, lanes=128, width=256),
        Engine.SCALAR: EngineSpec(clock_hz=1 * GIGA, lanes=128, width=512),
    },
    sbuf=_UNPUBLISHED_MEMORY,
    psum=_UNPUBLISHED_MEMORY,
    dma=DmaSpec(engines=0, rings_per_engine=0, engine_bandwidth=0, engine_peak_bandwidth=0),
    descriptor_engines=0,
    moves_bits=False,
    takes_constant_bias=False,
    reads_pairs=False,
)

NC_V2 = CoreSpec(
    name="NeuronCore-v2",
    version=2,
    base_clock_hz=1_400_000_000,  # profile
    tensor=TensorEngineSpec(
        clock_hz=2_800_000_000,  # nki/trainium_inferentia2_arch
        rows=128,  # same page
        columns=128,  # same page
        rates=_RATES_V2,
        sparse_rate=Fraction(0),
        # nki/trainium_inferentia2_arch: 92 BF16 (hw/neuron-core-v2: "over 90"), 23 FP32. The 380
        # INT8 TOPS of hw/trainium have no rate: isa lists no integer operand for this engine.
        published_tflops={"bfloat16": 92, "float32": 23},
    ),
    engines={
        # Clocks and data paths: nki/trainium_inferentia2_arch. TFLOPS: hw/neuron-core-v2.
        Engine.VECTOR: EngineSpec(
            clock_hz=1_120_000_000, lanes=128, width=128, published_tflops=2.3
        ),
        Engine.SCALAR: EngineSpec(
            clock_hz=1_400_000_000, lanes=128, width=128, published_tflops=2.9
        ),
        Engine.GPSIMD: EngineSpec(clock_hz=1_400_000_000, lanes=128, width=128),
    },
    sbuf=MemorySpec(
        partitions=128,  # nki/trainium_inferentia2_arch
        partition_bytes=192 * KIB,  # same page: 24 MiB
        usable_partition_bytes=180_224,  # consts: 16 KiB reserved
    ),
    psum=_PSUM,
    dma=DmaSpec(
        engines=16,  # nki/trainium_inferentia2_arch
        rings_per_engine=16,  # dma
        engine_bandwidth=17 * GIGA,  # dma: the sustained row, 272 GB/s per core
        engine_peak_bandwidth=27_200_000_000,  # dma
    ),
    descriptor_engines=0,
    moves_bits=False,
    takes_constant_bias=False,
    reads_pairs=False,
)

NC_V3 = CoreSpec(
    name="NeuronCore-v3",
    version=3,
    base_clock_hz=1_200_000_000,  # profile
    tensor=TensorEngineSpec(
        clock_hz=2_400_000_000,  # nki/trainium2_arch
        rows=128,  # same page
        columns=128,  # same page
        rates=_RATES_V3,
        sparse_rate=Fraction(4),  # hw/neuron-core-v3: 316 sparse against 79 dense
        # hw/neuron-core-v3
        published_tflops={"float8_e4m3": 158, "bfloat16": 79, "float32": 20},
    ),
    engines={
        # Clocks and data paths: nki/trainium2_arch. TFLOPS: hw/neuron-core-v3 (below v2's figures
        # although the data path is wider: AWS counts differently there).
        Engine.VECTOR: EngineSpec(
            clock_hz=960_000_000,
            lanes=128,
            width=256,
            wide={"bfloat16": 512, "float16": 512},
            published_tflops=1.0,
        ),
        Engine.SCALAR: EngineSpec(
            clock_hz=1_200_000_000, lanes=128, width=128, published_tflops=1.2
        ),
        Engine.GPSIMD: EngineSpec(clock_hz=1_200_000_000, lanes=128, width=128),
    },
    sbuf=MemorySpec(
        partitions=128,  # nki/trainium2_arch
        partition_bytes=224 * KIB,  # same page: 28 MiB
        usable_partition_bytes=212_984,  # consts: 16 KiB + 8 reserved
    ),
    psum=_PSUM,
    dma=DmaSpec(
        engines=16,  # nki/trainium2_arch
        rings_per_engine=16,  # dma
        engine_bandwidth=23 * GIGA,  # dma: the sustained row, 368 GB/s per core
        engine_peak_bandwidth=27_200_000_000,  # dma
    ),
    descriptor_engines=2,  # nki/trainium2_arch
    moves_bits=True,  # nki/trainium2_arch
    takes_constant_bias=True,  # isa (activation: bias)
    reads_pairs=True,  # nki/trainium2_arch
)

NC_V4 = CoreSpec(
    name="NeuronCore-v4",
    version=4,
    base_clock_hz=1_200_000_000,  # derived: not printed; ScalarE's clock, as on v2 and v3
    tensor=TensorEngineSpec(
        clock_hz=2_400_000_000,  # nki/trainium3_arch
        rows=128,  # same page
        columns=128,  # same page
        rates=_RATES_V4,
        sparse_rate=Fraction(4),  # hw/neuron-core-v4: 315 sparse against 79 dense
        # hw/neuron-core-v4
        published_tflops={
            "float8_e4m3fn_x4": 315,
            "float4_e2m1fn_x4": 315,
            "bfloat16": 79,
            "float32": 20,
        },
    ),
    engines={
        # Clocks and data paths: nki/trainium3_arch. TFLOPS: hw/neuron-core-v4.
        Engine.VECTOR: EngineSpec(
            clock_hz=1_200_000_000,
            lanes=128,
            width=256,
            wide=dict.fromkeys(_SHORT, 512),
            published_tflops=1.2,
        ),
        Engine.SCALAR: EngineSpec(
            clock_hz=1_200_000_000,
            lanes=128,
            width=128,
            wide=dict.fromkeys(_SHORT, 256),
            published_tflops=1.2,
        ),
        Engine.GPSIMD: EngineSpec(clock_hz=1_200_000_000, lanes=128, width=128),
    },
    sbuf=MemorySpec(
        partitions=128,  # nki/trainium3_arch
        partition_bytes=256 * KIB,  # same page: 32 MiB
        usable_partition_bytes=245_752,  # consts: 16 KiB + 8 reserved
    ),
    psum=_PSUM,
    dma=DmaSpec(
        engines=16,  # nki/trainium3_arch
        rings_per_engine=16,  # dma
        engine_bandwidth=33 * GIGA,  # dma: the sustained row, 528 GB/s per core
        engine_peak_bandwidth=38_400_000_000,  # dma
    ),
    descriptor_engines=2,  # nki/trainium3_arch
    moves_bits=True,  # as v3
    takes_constant_bias=True,  # as v3
    reads_pairs=True,  # as v3
    assumed=("base_clock_hz", "moves_bits", "takes_constant_bias", "reads_pairs"),
)

_MICROCODE_BYTES = 96 * MIB  # neuron-runtime/explore/device-memory.rst

INFERENTIA1 = ChipSpec(
    name="inferentia1",
    core=NC_V1,
    cores=4,  # hw/inferentia
    hbm=HbmSpec(
        capacity_bytes=8 * GIB,  # hw/inferentia: DRAM
        stacks=1,
        bandwidth=50 * GIB,  # hw/inferentia
    ),
    published_dma_bandwidth=None,
    cc_cores=0,
    neuronlink_bandwidth=32 * GIB,  # hw/inf1-arch
    neuronlink_version=1,
    device_kinds={1: "NC_v1"},
    default_lnc=1,
    microcode_bytes=_MICROCODE_BYTES,
    published_tflops={"bfloat16": 64, "float16": 64, "int8": 128},  # hw/inferentia
)

# hw/trainium and hw/inferentia2 say 820 GiB/s, nki/trainium_inferentia2_arch says 820 GB/s; the
# smaller one is used.
_HBM_V2 = HbmSpec(capacity_bytes=32 * GIB, stacks=2, bandwidth=820 * GIGA)
# hw/trainium and hw/inferentia2. hw/trainium2 repeats Trainium1 as 191/191/48 and
# about-neuron/arch/neuron-features/neuroncore-batching.rst has 210 BF16: the chip's page counts.
_TFLOPS_V2 = {
    "float8_e4m3": 190,
    "bfloat16": 190,
    "float16": 190,
    "tfloat32": 190,
    "float32": 47.5,
    "int8": 380,
}

INFERENTIA2 = ChipSpec(
    name="inferentia2",
    core=NC_V2,
    cores=2,  # hw/inferentia2
    hbm=_HBM_V2,
    published_dma_bandwidth=1 * TERA,  # hw/inferentia2
    cc_cores=6,  # nki/trainium_inferentia2_arch
    neuronlink_bandwidth=192 * GIGA,  # hw/inf2-arch prints GiB/s; 2 of Trainium1's 96 GB/s links
    neuronlink_version=2,
    device_kinds={1: "NC_v2"},
    default_lnc=1,
    microcode_bytes=_MICROCODE_BYTES,
    published_tflops=_TFLOPS_V2,
)

TRAINIUM1 = ChipSpec(
    name="trainium1",
    core=NC_V2,
    cores=2,  # hw/trainium
    hbm=_HBM_V2,
    published_dma_bandwidth=1 * TERA,  # hw/trainium
    cc_cores=6,  # nki/trainium_inferentia2_arch
    neuronlink_bandwidth=384 * GIGA,  # hw/trn1-arch: trn1.32xlarge
    neuronlink_version=2,
    device_kinds={1: "NC_v2"},
    default_lnc=1,
    microcode_bytes=_MICROCODE_BYTES,
    published_tflops=_TFLOPS_V2,
)

TRAINIUM2 = ChipSpec(
    name="trainium2",
    core=NC_V3,
    cores=8,  # hw/trainium2
    hbm=HbmSpec(
        # hw/trainium2; each 24 GiB stack serves two physical cores (lnc), against "32 GB per
        # NeuronCore" in tools/neuron-explorer/glossary.rst.
        capacity_bytes=96 * GIB,
        stacks=4,
        # hw/trainium2, and 16 times it are the 46.4 TB/s of hw/trn2-arch; nki/trainium2_arch has 3.
        bandwidth=2_900 * GIGA,
    ),
    published_dma_bandwidth=3_500 * GIGA,  # hw/trainium2
    # hw/trainium2; nki/trainium2_arch says 20, but neuron-runtime/explore/compute-comm-overlap.rst
    # counts two for each of the eight cores.
    cc_cores=16,
    neuronlink_bandwidth=1_280 * GIGA,  # hw/trainium2; derived: 1024 in the instance + 256 between
    neuronlink_version=3,
    device_kinds={1: "NC_v3", 2: "NC_v3d"},  # lnc
    default_lnc=2,  # lnc
    microcode_bytes=_MICROCODE_BYTES,
    # hw/trainium2
    published_tflops={
        "float8_e4m3": 1299,
        "bfloat16": 667,
        "float16": 667,
        "tfloat32": 667,
        "float32": 181,
        "sparse": 2563,
    },
)

TRAINIUM3 = ChipSpec(
    name="trainium3",
    core=NC_V4,
    cores=8,  # hw/trainium3
    hbm=HbmSpec(
        capacity_bytes=144 * GIB,  # hw/trainium3
        stacks=4,  # nki/trainium3_arch
        # hw/trainium3, and 64 times it are the 313.6 TB/s of hw/trn3-arch; nki/trainium3_arch: 4.7.
        bandwidth=4_900 * GIGA,
    ),
    published_dma_bandwidth=4_900 * GIGA,  # hw/trainium3
    cc_cores=16,  # hw/trainium3; nki/trainium3_arch says 20, see Trainium2
    neuronlink_bandwidth=2_560 * GIGA,  # hw/trainium3; hw/trn3-arch has 2,048 GiB/s per device
    neuronlink_version=4,
    device_kinds={1: "NC_v4", 2: "NC_v4d"},  # derived: named like Trainium2's
    default_lnc=2,  # compiler/neuronx-cc/api-reference-guide/index.rst
    microcode_bytes=_MICROCODE_BYTES,
    # hw/trainium3
    published_tflops={
        "float8_e4m3fn_x4": 2517,
        "float4_e2m1fn_x4": 2517,
        "bfloat16": 671,
        "float16": 671,
        "tfloat32": 671,
        "float32": 183,
        "sparse": 2517,
    },
)

CHIPS: Mapping[str, ChipSpec] = {
    chip.name: chip for chip in (INFERENTIA1, INFERENTIA2, TRAINIUM1, TRAINIUM2, TRAINIUM3)
}
