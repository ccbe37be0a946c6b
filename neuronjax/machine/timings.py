"""Documented intervals and latencies of the engines, DMA and collectives, by core generation.

Clocks, widths and bandwidths are in `chips`. Undocumented numbers, and those fitted to
measurements, are in `neuronjax.timing.calibration`. Sources are named as in `chips`, and:

    guide     nki/guides/architecture/trainium_inferentia2_arch.rst
    explorer  tools/neuron-explorer/overview-summary-page.rst and glossary.rst
    overlap   neuron-runtime/explore/compute-comm-overlap.rst
    intra     neuron-runtime/explore/intranode-collective-comm.rst
    dma-bandwidth  nki/deep-dives/nki-dma-bandwidth-guide.rst
    inter     neuron-runtime/explore/internode-collective-comm.rst
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from neuronjax.machine.specs import KIB, MIB

DMA_BEAT_BYTES = 64
"""Least bytes that the memory interface moves, and that an element should have (dma-bandwidth)."""
INSTRUCTION_CYCLES = 64
"""Least cycles between two instructions of an engine, in every generation (guide: MIN_II)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineTimings:
    """Limits of instruction streams, in cycles of the engine."""

    #: Least cycles between two instructions of an engine.
    minimum_interval_cycles: int = INSTRUCTION_CYCLES
    #: Cycles from asking SBUF or PSUM to the first element, partly hidden (guide).
    access_cycles: int = 60
    #: Cycles that reading an accumulator register takes (guide: ActReadAccumulator).
    accumulator_cycles: int = 64
    #: Cycles that every GpSimd instruction adds (isa, edition 2.26: 150 + N).
    gpsimd_overhead_cycles: int = 150
    #: Free stride in bytes above which an access runs at half speed (guide).
    dense_stride_bytes: int = 16
    #: Cycles of Vector for an element of `reciprocal` (isa).
    reciprocal_cycles: int = 8
    #: Columns of a stationary matrix loaded per cycle at best (guide: "up to 4× faster").
    stationary_columns_per_cycle: int = 4
    #: Window over which the use of the Tensor engine limits its clock; 0: never (explorer).
    throttle_window_ns: float = 0.0
    #: Use below which it is throttled, and its speed then (explorer).
    throttle_share: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class DmaTimings:
    """The costs of DMA besides bytes divided by bandwidth."""

    #: Bytes of a packet of a contiguous transfer (overlap).
    packet_bytes: int = 4 * KIB
    #: The hardware descriptor generator, for each transfer (nki/trainium2_arch).
    generator_ns: float = 600.0
    #: From a semaphore to the first byte of a transfer whose descriptors the engines fetch from HBM
    #: (dma-bandwidth: "semaphore to start").
    start_ns: float = 1_300.0
    #: From one transfer of a queue to the next: the curve of `dma` is a straight line below it.
    queue_interval_ns: float = 865.0
    #: Share of the bandwidth that a transfer with arithmetic has (nki/trainium3_arch).
    compute_share: float = 0.5
    #: Share of a transposing transfer from HBM, and from SBUF (nki/trainium2_arch).
    transpose_share: float = 0.9
    transpose_share_sbuf: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTimings:
    """The costs of the steps of collectives."""

    #: One step between neighbours, on other chips or the same one: 1 to 2 µs (intra).
    hop_ns: float = 1_500.0
    #: One step between instances, from HBM to HBM (inter).
    host_hop_ns: float = 15_000.0
    #: Stages in which a hierarchical collective is pipelined (NEC_HIER_CC_PIPELINE_STAGE_N).
    pipeline_stages: int = 3
    #: Bytes from which one ring over all instances takes the place of a hierarchy: "large
    #: messages" (inter), taken to begin where the mesh ends (intra).
    flat_ring_bytes: float = math.inf
    #: HBM traffic of KangaRing over Ring: all-gather, reduce-scatter (intra).
    kangaring_gather_share: float = 0.75
    kangaring_scatter_share: float = 0.67


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """All timings of a generation."""

    engines: EngineTimings = EngineTimings()
    dma: DmaTimings = DmaTimings()
    collectives: CollectiveTimings = CollectiveTimings()


# The documented eight cycles of `reciprocal` do not fit into the times that NKIBench (AccelOpt's
# kernels) measured on Trn1: AdamW keeps Vector busy for 1.80 ms and SiLU takes 1.333 in all, which
# leave room for two.
_V2 = Timings(
    engines=EngineTimings(reciprocal_cycles=2),
    collectives=CollectiveTimings(flat_ring_bytes=1 * MIB),
)
_V3 = Timings(engines=EngineTimings(throttle_window_ns=3_000.0))
# nki/trainium3_arch: accumulating transfers run at full rate.
_V4 = Timings(engines=EngineTimings(throttle_window_ns=3_000.0), dma=DmaTimings(compute_share=1.0))

TIMINGS: Mapping[int, Timings] = {1: _V2, 2: _V2, 3: _V3, 4: _V4}
"""Version of the core -> its timings. Those of version 1 are not documented and are version 2's."""
