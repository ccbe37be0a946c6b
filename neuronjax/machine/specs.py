"""The records of hardware facts, without the numbers.

`chips.py` fills them in. Bandwidths are bytes per second, clocks are hertz, sizes are bytes. A
record checks its own arithmetic when it is made, so a mistyped constant fails at import and not in
somebody's estimate.

Number formats are named as in NKI (`nki.language`): "float32", "tfloat32", "bfloat16", "float16",
"float8_e4m3", "float8_e5m2", "float8_e3m4" and, for MX operands, "float8_e4m3fn_x4",
"float8_e5m2_x4", "float4_e2m1fn_x4".
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from neuronjax.errors import UnsupportedProgramError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
GIGA = 10**9
TERA = 10**12

PARTITIONS = 128
"""Partitions of SBUF and PSUM in every generation whose memories are published."""
ACCESS_DIMS = 4
"""Free dimensions of an access pattern, in every generation (isa)."""
WORD_BYTES = 4
"""Bytes of the numbers that engines compute with."""
QUADRANT = 32
"""Partitions in a quadrant: accesses may start at its first (isa)."""
MX_BLOCK, MX_WORD = 32, 4
"""Elements that share a scale (OCP Microscaling Formats 1.0), and elements of a packed word; a
block lies on neighbouring partitions, a word on each (isa: nc_matmul_mx)."""
MAX8_ELEMENTS, MAX8_CHOSEN = 16_384, 8
"""Most elements of a row of which Vector finds the greatest, and how many it finds (isa: max8)."""
MOVING_COLUMNS = 512
"""Most columns of a moving matrix, in every generation: what one bank of PSUM takes in FP32."""


class Engine(enum.Enum):
    """The engines of a NeuronCore that run instruction streams."""

    TENSOR = "tensor"
    VECTOR = "vector"
    SCALAR = "scalar"
    GPSIMD = "gpsimd"
    SYNC = "sync"

    __hash__ = object.__hash__  # of a single object: enum's own asks for its name


def _check(holds: bool, fact: str) -> None:
    if not holds:
        raise ValueError(f"inconsistent hardware record: {fact}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEngineSpec:
    """The systolic array: `rows` is the contraction side, `columns` the stationary free side."""

    clock_hz: int
    rows: int
    columns: int
    #: Multiply-accumulates per cell and cycle, by operand format, at the best documented mode.
    rates: Mapping[str, Fraction] = field(hash=False)
    #: The same with structured sparsity, BF16 operands; 0 where the engine has none.
    sparse_rate: Fraction
    #: Dense peak as AWS prints it, in TFLOPS, by operand format.
    published_tflops: Mapping[str, float] = field(hash=False)

    def __post_init__(self) -> None:
        for name, tflops in self.published_tflops.items():
            derived = self.flops(name) / TERA
            _check(
                abs(derived - tflops) <= 0.025 * tflops,
                f"{name}: {derived:.2f} TFLOPS from the clock, {tflops} published",
            )

    def flops(self, dtype: str) -> float:
        """Dense peak in FLOP/s: 2 · rows · columns · clock · rate. KeyError: no operand format."""
        return float(2 * self.rows * self.columns * self.clock_hz * self.rates[dtype])

    @property
    def sparse_flops(self) -> float:
        """Peak with structured sparsity in FLOP/s; 0.0 where the engine has none."""
        return float(2 * self.rows * self.columns * self.clock_hz * self.sparse_rate)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpec:
    """An element-wise engine: one lane per partition, `width` elements per cycle over all lanes."""

    clock_hz: int
    lanes: int
    #: Documented data path in elements per cycle, for every format without an entry in `wide`.
    width: int
    wide: Mapping[str, int] = field(hash=False, default_factory=dict)
    #: FP32 TFLOPS as AWS prints it; for reports only, it does not follow from width and clock.
    published_tflops: float | None = None

    def __post_init__(self) -> None:
        _check(self.width % self.lanes == 0, f"width {self.width} over {self.lanes} lanes")
        for name, width in self.wide.items():
            _check(width > self.width, f"{name}: wide path {width} is not wider than {self.width}")

    def elements_per_cycle(self, dtype: str) -> int:
        """Documented data path for `dtype`, in elements per cycle over all lanes."""
        return self.wide.get(dtype, self.width)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySpec:
    """A two-dimensional on-chip memory, SBUF or PSUM: partitions × bytes.

    `partitions == 0` means that AWS publishes no size.
    """

    partitions: int
    partition_bytes: int
    #: What a program may use of a partition; the rest belongs to the system.
    usable_partition_bytes: int
    banks: int = 1

    def __post_init__(self) -> None:
        _check(
            0 <= self.usable_partition_bytes <= self.partition_bytes,
            f"{self.usable_partition_bytes} usable of {self.partition_bytes} bytes",
        )
        _check(self.partition_bytes % self.banks == 0, f"{self.banks} banks do not divide evenly")

    @property
    def size_bytes(self) -> int:
        """Bytes over all partitions."""
        return self.partitions * self.partition_bytes

    @property
    def usable_bytes(self) -> int:
        """Bytes over all partitions that a program may use."""
        return self.partitions * self.usable_partition_bytes

    @property
    def bank_bytes(self) -> int:
        """Bytes of one bank in one partition."""
        return self.partition_bytes // self.banks


@dataclass(frozen=True, kw_only=True, slots=True)
class DmaSpec:
    """The DMA engines of one core."""

    engines: int
    rings_per_engine: int
    #: Sustained bytes/s of one engine: the one to time with.
    engine_bandwidth: int
    #: Theoretical bytes/s of one engine.
    engine_peak_bandwidth: int

    def __post_init__(self) -> None:
        _check(
            self.engine_bandwidth <= self.engine_peak_bandwidth,
            "sustained DMA bandwidth above the theoretical one",
        )

    @property
    def bandwidth(self) -> int:
        """Sustained bytes/s of all engines of the core together."""
        return self.engines * self.engine_bandwidth


@dataclass(frozen=True, kw_only=True, slots=True)
class HbmSpec:
    """The device memory of one chip."""

    capacity_bytes: int
    stacks: int
    #: Bytes/s of the whole chip.
    bandwidth: int

    def __post_init__(self) -> None:
        _check(self.capacity_bytes % self.stacks == 0, f"{self.stacks} unequal stacks")

    @property
    def stack_bytes(self) -> int:
        """Bytes of one stack."""
        return self.capacity_bytes // self.stacks


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreSpec:
    """One physical NeuronCore of a generation."""

    name: str
    #: The version number in "NeuronCore-v<n>".
    version: int
    #: Clock of `neuroncore_cycle_count`; also that of the Sync engine's sequencer.
    base_clock_hz: int
    tensor: TensorEngineSpec
    #: The element-wise engines that the generation has.
    engines: Mapping[Engine, EngineSpec] = field(hash=False)
    sbuf: MemorySpec
    psum: MemorySpec
    dma: DmaSpec
    #: Hardware descriptor-generation engines.
    descriptor_engines: int
    #: Whether transposes of the Tensor engine move bits; else they are products.
    moves_bits: bool
    #: Whether the Scalar engine takes a constant as its bias.
    takes_constant_bias: bool
    #: Whether Vector reads two tensors of SBUF in the time that it takes for one.
    reads_pairs: bool
    #: Fields above that AWS does not publish: they are taken from the core before.
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.is_published:
            _check(self.sbuf.partitions == self.psum.partitions == PARTITIONS, "partitions")
            _check(self.tensor.rows == self.tensor.columns == PARTITIONS, "rows of the array")
            _check(self.psum.bank_bytes == 4 * MOVING_COLUMNS, "columns of a moving matrix")

    @property
    def vector(self) -> EngineSpec:
        """The Vector engine."""
        return self.engines[Engine.VECTOR]

    @property
    def scalar(self) -> EngineSpec:
        """The Scalar engine."""
        return self.engines[Engine.SCALAR]

    @property
    def gpsimd(self) -> EngineSpec:
        """The GpSimd engine. KeyError: NeuronCore-v1 has none."""
        return self.engines[Engine.GPSIMD]

    @property
    def is_published(self) -> bool:
        """Whether AWS publishes enough (memory sizes, DMA) to lower a program for this core."""
        return self.sbuf.partitions > 0

    def clock_hz(self, engine: Engine) -> int:
        """Clock of `engine`. KeyError: the generation has no such engine."""
        if engine is Engine.TENSOR:
            return self.tensor.clock_hz
        return self.base_clock_hz if engine is Engine.SYNC else self.engines[engine].clock_hz


@dataclass(frozen=True, kw_only=True, slots=True)
class ChipSpec:
    """A chip: its cores, memory and software-visible properties."""

    name: str
    core: CoreSpec
    cores: int
    hbm: HbmSpec
    #: Bytes/s of all DMA engines as AWS prints it; None where it prints none.
    published_dma_bandwidth: int | None
    #: Collective-communication cores of the chip.
    cc_cores: int
    #: Bytes/s of all NeuronLink ports as AWS prints it.
    neuronlink_bandwidth: int
    neuronlink_version: int
    #: PJRT device kind by logical-core configuration (LNC): the keys are the allowed values.
    device_kinds: Mapping[int, str] = field(hash=False)
    default_lnc: int
    #: Device memory that the runtime keeps for microcode, per physical core.
    microcode_bytes: int
    #: Peak as AWS prints it, in TFLOPS (TOPS for int8), for reports only: it is not cores × core.
    published_tflops: Mapping[str, float] = field(hash=False)

    def __post_init__(self) -> None:
        _check(self.default_lnc in self.device_kinds, f"default LNC {self.default_lnc} not allowed")
        for lnc in self.device_kinds:
            _check(self.cores % lnc == 0, f"LNC {lnc} does not divide {self.cores} cores")
        if self.published_dma_bandwidth is not None:
            _check(
                self.cores * self.core.dma.bandwidth <= self.published_dma_bandwidth,
                "the DMA engines of the cores exceed the published DMA bandwidth of the chip",
            )
        rates = self.core.tensor.rates
        for name in self.published_tflops.keys() & rates.keys():
            derived = self.cores * self.core.tensor.flops(name) / TERA
            # AWS prints chip figures up to 16 % above cores × core (667 against 8 · 79 BF16, 183
            # against 8 · 20 FP32), and Inferentia's 2 % below.
            _check(
                0.97 <= self.published_tflops[name] / derived <= 1.17,
                f"{name}: {derived:.1f} TFLOPS from cores, {self.published_tflops[name]} published",
            )

    def check_published(self) -> None:
        """UnsupportedProgramError: AWS publishes too little to lower or time a program for it."""
        if not self.core.is_published:
            raise UnsupportedProgramError(
                f"nothing can be lowered or timed for {self.name}: AWS publishes neither its "
                "memories nor its DMA engines. Choose inf2, trn1 or a newer target."
            )

    @property
    def allowed_lncs(self) -> tuple[int, ...]:
        """Logical-core configurations the chip supports, ascending."""
        return tuple(sorted(self.device_kinds))

    @property
    def dma_engines(self) -> int:
        """DMA engines of all cores."""
        return self.cores * self.core.dma.engines

    @property
    def sbuf_bytes(self) -> int:
        """SBUF bytes of all cores."""
        return self.cores * self.core.sbuf.size_bytes

    @property
    def hbm_bandwidth_per_core(self) -> float:
        """Bytes/s of device memory for one physical core when all cores stream."""
        return self.hbm.bandwidth / self.cores

    def logical_cores(self, lnc: int) -> int:
        """Logical cores at configuration `lnc`, which must be allowed."""
        return self.cores // lnc

    def logical_core_hbm_bytes(self, lnc: int) -> int:
        """Device memory share of one logical core in bytes."""
        return self.hbm.capacity_bytes // self.logical_cores(lnc)

    def hbm_stack(self, physical_core: int) -> int:
        """Stack nearest to the chip's physical core of that number."""
        return physical_core * self.hbm.stacks // self.cores

    def flops(self, dtype: str) -> float:
        """Dense matmul peak of all cores in FLOP/s, from the clocks. KeyError: not a format."""
        return self.cores * self.core.tensor.flops(dtype)
