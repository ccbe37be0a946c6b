"""Public measurements of kernels, instructions and collectives.

Paths are relative to aws-neuron/aws-neuron-sdk; "img" marks a number read off a picture (±2 %). A
range is recorded by its middle.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuronjax.timing.calibration import CHOSEN, FITTED


class Kind(enum.Enum):
    """Groups that are reported apart."""

    KERNEL = "kernels and instructions"
    COLLECTIVE = "collectives"
    MODEL = "models"


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement. `published` is in ns, or a number where the name says so."""

    name: str
    kind: Kind
    what: str
    published: float
    source: str
    #: An upper bound: met by a prediction within it and above 60 % of it.
    is_bound: bool = False
    #: Not part of the averages, with the reason.
    left_out: str = ""
    #: Cores that took part, and their chip; of kernels, the text says it.
    ranks: int = 1
    chip: str = ""

    @property
    def is_calibrated(self) -> bool:
        """Whether a constant was fitted to it, or a choice made with it in view."""
        used = (*FITTED.values(), *CHOSEN.values())
        return any(self.name in points for points in used)


LEAST_OF_BOUND = 0.6
"""A prediction below this share of an upper bound counts as a miss."""

_GUIDE = "nki/img/nki_perf_guide (img)"
_DMA = "nki/get-started/about/nki-dma-overview.rst"
_MATMUL = "nki/guides/tutorials/kernel-optimization.rst"
_NCCOM = "tools/neuron-sys-tools/nccom-test.rst"


def _kernel(name: str, what: str, published: float, source: str, **further: object) -> Point:
    return Point(name, Kind.KERNEL, what, published, source, **further)  # type: ignore[arg-type]


KERNELS: tuple[Point, ...] = (
    _kernel("K1 total", "Trn2 matmul FP32 4096×8192×8192", 28.30e6, _MATMUL),
    _kernel("K1 PE", "Tensor engine active", 28.16e6, _MATMUL),
    _kernel("K1 Vector", "Vector engine active", 2.99e6, _MATMUL),
    _kernel("K1 DMA", "DMA active", 6.10e6, _MATMUL),
    _kernel("K1 MATMULs", "number of MATMUL instructions", 65_536, _MATMUL),
    _kernel("K2 latency", "Trn2 FP32 MATMUL, N 512", 590.5, "nki/img/how-to (img)"),
    _kernel("K2 interval", "from one such MATMUL to the next", 427, "nki/img/how-to (img)"),
    _kernel("K3", "Trn1 BF16 MATMUL, N 128: latency", 203.5, _GUIDE),
    _kernel("K4", "Trn1 LoadStationary of one element", 67, _GUIDE),
    _kernel("K5 latency", "Trn1 ACTIVATE of one element", 159, _GUIDE),
    _kernel("K5 interval", "from one such ACTIVATE to one that needs it", 189, _GUIDE),
    _kernel("K6", "Trn1 TENSOR_TENSOR FP32, N 8192, from SBUF", 14_977, _GUIDE),
    _kernel("K7", "Trn1 Scalar engine, 8192 FP32 per partition", 6_050, _GUIDE),
    _kernel("K8", "Trn1 semaphore event", 9, _GUIDE),
    _kernel("K9", "Trn1 DMA of 32 KiB on one engine", 1_810, _GUIDE),
    _kernel("K10 table", "Trn1 activation-table load", 368, _GUIDE),
    _kernel("K10 prologue", "Trn1 before the first instruction", 12_000, _GUIDE),
    _kernel("K10 epilogue", "Trn1 after the last instruction", 3_500, _GUIDE),
    _kernel(
        "K10 total", "Trn1 tiny exp kernel, end to end", 29_260, _GUIDE,
        left_out="the picture does not say the shape; [128, 512] FP32 is taken",
    ),
    _kernel("K11", "Trn2 DMA of 32 KiB on one engine", 1_416, _DMA),
    _kernel("K12", "Trn2 DMA of 8 rows of 256 B on one engine", 97, f"{_DMA} (img)"),
    _kernel("K13 load", "Trn2 [128, 128] BF16: trigger to activation", 1_500, f"{_DMA} (img)"),
    _kernel("K13 store", "store's trigger to data on the wire", 600, f"{_DMA} (img)"),
    _kernel("K14 total", "Trn1 mamba v1", 172.93e3, "nki/guides/tutorials/fused_mamba.rst"),
    _kernel("K14 Vector", "Vector engine active", 148.99e3, "nki/guides/tutorials/fused_mamba.rst"),
    _kernel(
        "K15 FP32", "Trn1 attention 4096×4096, d 128, FP32", 675e3, "nki-samples unit tests",
        is_bound=True,
    ),
    _kernel(
        "K15 BF16", "Trn1 attention 4096×4096, d 128, BF16", 536e3, "nki-samples unit tests",
        is_bound=True,
    ),
    _kernel(
        "K16", "Trn2 minimal kernel", 3_200, "neuron-runtime/nrtpy/tutorial-validate-benchmark.rst"
    ),
    _kernel("K17", "Trn1 load of 256 KiB, [128, 512] FP32", 3_046, _GUIDE),
)  # fmt: skip

_SIZES: Mapping[str, int] = {
    "1 KiB": 1 << 10, "8 KiB": 1 << 13, "64 KiB": 1 << 16, "256 KiB": 1 << 18, "512 KiB": 1 << 19,
    "1 MiB": 1 << 20, "4 MiB": 1 << 22, "16 MiB": 1 << 24, "64 MiB": 1 << 26, "256 MiB": 1 << 28,
    "1 GiB": 1 << 30,
}  # fmt: skip

ALL_REDUCE_US: Mapping[str, float] = {
    "1 KiB": 58, "64 KiB": 58, "256 KiB": 60, "1 MiB": 68, "4 MiB": 107, "16 MiB": 332,
    "64 MiB": 1_214, "256 MiB": 4_750, "1 GiB": 18_930,
}  # fmt: skip
"""FP32, two ranks, one instance."""

ALL_REDUCE_16_US: Mapping[str, float] = {"1 KiB": 300}
"""The floor of 16 ranks on one instance, the same tool."""

ALL_REDUCE_64_US: Mapping[str, float] = {
    "1 KiB": 520,
    "1 MiB": 1_328,
    "64 MiB": 3_963,
    "1 GiB": 41_806,
}
"""FP32, 64 ranks on two instances (trn1.32xlarge), the same tool."""

ALL_GATHER_US: Mapping[str, float] = {
    "1 KiB": 6.19,
    "8 KiB": 6.55,
    "64 KiB": 8.18,
    "512 KiB": 23.11,
}
"""FP32, 32 ranks, a newer run: device time. The instance is not said; trn1.32xlarge has 32."""

ALL_GATHER_8_US: Mapping[str, float] = {"1 KiB": 10.0, "512 KiB": 14.83}
"""FP32, 8 ranks, the same run."""


def _collectives(name: str, ranks: int, times: Mapping[str, float]) -> Iterator[Point]:
    """The points of one table of collectives."""
    for size, time in times.items():
        yield Point(
            f"{name} {size}", Kind.COLLECTIVE, f"{ranks} ranks, {size}", 1e3 * time, _NCCOM,
            ranks=ranks, chip="trainium1",
        )  # fmt: skip


COLLECTIVES: tuple[Point, ...] = (
    *_collectives("all-reduce", 2, ALL_REDUCE_US),
    *_collectives("all-reduce-16", 16, ALL_REDUCE_16_US),
    *_collectives("all-reduce-64", 64, ALL_REDUCE_64_US),
    *_collectives("all-gather", 32, ALL_GATHER_US),
    *_collectives("all-gather-8", 8, ALL_GATHER_8_US),
)


def nbytes(point: Point) -> int:
    """Bytes of a collective's point."""
    return _SIZES[point.name.split(" ", 1)[1]]


POINTS: tuple[Point, ...] = KERNELS + COLLECTIVES
"""All measurements."""
