"""Cost of DMA: descriptors from the contiguous runs of access patterns, shared by 16 engines.

A descriptor moves one run that is contiguous on both sides, at most a packet of 4 KiB; runs below a
beat of 64 bytes take as long as a beat (the width of the memory interface, assumed). Descriptors
are dealt out to the engines in turn. Beside its bytes each costs a little, which with the interval
between two transfers of a queue gives the curve of nki-dma-overview: a straight line up to 2 KiB
per partition, and the full rate from 4 KiB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from neuronjax.machine.specs import Engine
from neuronjax.machine.timings import DMA_BEAT_BYTES
from neuronjax.program import dma as program
from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Memory
from neuronjax.program.operators import DescriptorMode
from neuronjax.timing.cost import Cost, Rule, Transfer, extra, sequencer
from neuronjax.timing.platform import Platform
from neuronjax.timing.walks import run_elements

_SOFTWARE_CYCLES = 4
"""Cycles of GpSimd for a descriptor that it makes itself: a few stores (estimate)."""


def _touches_hbm(*accesses: Access) -> int:
    return sum(access.memory is Memory.HBM for access in accesses)


def _descriptors(dst: Access, src: Access, platform: Platform) -> tuple[int, float]:
    """Number of descriptors of a copy, and bytes of each."""
    run = min(run_elements(dst), run_elements(src))
    size = max(bytes_of(dst.element_type), bytes_of(src.element_type))
    count = max(dst.elements, src.elements) / run
    packets = math.ceil(run * size / platform.timings.dma.packet_bytes)
    return math.ceil(count) * packets, run * size / packets


def transfer(
    platform: Platform,
    *,
    nbytes: int,
    hbm_accesses: int,
    descriptors: int,
    descriptor_bytes: float,
    share: float = 1.0,
    mode: DescriptorMode = DescriptorMode.STATIC,
) -> Transfer:
    """A transfer of `descriptors`, made as `mode` says, at a `share` of the bandwidth.

    `hbm_accesses` are the sides in HBM: 0 to 2. The engines together do not exceed the core's share
    of HBM bandwidth.
    """
    calibration, timings = platform.calibration, platform.timings.dma
    all_engines = platform.core.dma.engines
    engines = min(all_engines, descriptors)
    hbm_rate = math.inf
    if hbm_accesses:
        hbm_rate = platform.hbm_bytes_per_ns / hbm_accesses / all_engines
    rate = min(platform.dma_bytes_per_ns * share, hbm_rate)
    each_ns = max(descriptor_bytes, DMA_BEAT_BYTES) / rate + calibration.dma_run_ns
    start_ns, generator_ns = _start(mode, platform)
    return Transfer(
        nbytes=nbytes,
        hbm_bytes=nbytes * hbm_accesses,
        engines=engines,
        engine_ns=descriptors / engines * each_ns,
        start_ns=start_ns,
        completion_ns=calibration.dma_completion_ns,
        interval_ns=timings.queue_interval_ns,
        generator_ns=generator_ns,
    )


def _start(mode: DescriptorMode, platform: Platform) -> tuple[float, float]:
    """The time from trigger to first byte, and that of the hardware generator before it, in ns.

    Descriptors that were made before the program runs lie in HBM, and the engines fetch them from
    there; those that a generator makes are with the engines at once. A core without a hardware
    generator has the former in its place.
    """
    timings, made_at_once = platform.timings.dma, platform.calibration.dma_start_ns
    if mode is DescriptorMode.SOFTWARE:
        return made_at_once, 0.0
    if mode is DescriptorMode.HARDWARE and platform.core.descriptor_engines:
        return made_at_once, timings.generator_ns
    return timings.start_ns, 0.0


def _cost(
    platform: Platform,
    engine: Engine,
    nbytes: int,
    hbm_accesses: int,
    descriptors: tuple[int, float],
    share: float = 1.0,
    mode: DescriptorMode = DescriptorMode.STATIC,
) -> Cost:
    """A transfer that an engine starts, of so many descriptors of so many bytes each; GpSimd writes
    those that software makes."""
    count, size = descriptors
    cost = sequencer(platform, engine) + Cost(
        transfer=transfer(
            platform,
            nbytes=nbytes,
            hbm_accesses=hbm_accesses,
            descriptors=count,
            descriptor_bytes=size,
            share=share,
            mode=mode,
        )
    )
    if mode is not DescriptorMode.SOFTWARE:
        return cost
    return cost + extra(platform, Engine.GPSIMD, count * _SOFTWARE_CYCLES)


def _copied(
    platform: Platform, engine: Engine, dst: Access, src: Access,
    mode: DescriptorMode = DescriptorMode.STATIC,
) -> Cost:  # fmt: skip
    nbytes, touched = max(dst.nbytes, src.nbytes), _touches_hbm(dst, src)
    return _cost(platform, engine, nbytes, touched, _descriptors(dst, src, platform), mode=mode)


def _copy(instruction: program.DmaCopy, platform: Platform) -> Cost:
    dst, src = instruction.dst, instruction.src
    return _copied(platform, instruction.engine, dst, src, instruction.descriptors)


def _rows(
    instruction: program.DmaGather | program.DmaScatter,
    platform: Platform,
    row: Access,
    reads_table: bool,
) -> Cost:
    """The cost of a row of the table for each index; `row` is the side that is dense in rows."""
    table, rows = instruction.table, instruction.index.elements
    per_row = max(1, row.elements // rows)
    inner = run_elements(table) if len(table.dims) != 1 else 1
    run = max(1, min(per_row, inner, run_elements(row)))
    size = bytes_of(table.element_type)
    pieces = math.ceil(run * size / platform.timings.dma.packet_bytes)
    return _cost(
        platform,
        Engine.GPSIMD,
        nbytes=rows * per_row * size,
        hbm_accesses=max(1, _touches_hbm(row, table)) + reads_table,
        descriptors=(rows * math.ceil(per_row / run) * pieces, run * size / pieces),
        share=platform.timings.dma.compute_share if instruction.accumulate else 1.0,
        mode=DescriptorMode.SOFTWARE,
    )


def _gather(instruction: program.DmaGather, platform: Platform) -> Cost:
    return _rows(instruction, platform, instruction.dst, reads_table=False)


def _scatter(instruction: program.DmaScatter, platform: Platform) -> Cost:
    """Adding reads the table as well."""
    return _rows(instruction, platform, instruction.src, reads_table=instruction.accumulate)


def _transpose_share(src: Access, platform: Platform) -> float:
    timings = platform.timings.dma
    is_hbm = src.memory is Memory.HBM
    return timings.transpose_share if is_hbm else timings.transpose_share_sbuf


def _transpose(instruction: program.DmaTranspose, platform: Platform) -> Cost:
    """Runs are those of the source: the engines turn blocks of two-byte elements on their way.

    Wider elements go one by one.
    """
    src, size = instruction.src, bytes_of(instruction.src.element_type)
    return _cost(
        platform,
        instruction.engine,
        src.nbytes,
        _touches_hbm(instruction.dst, src),
        (src.elements, float(size)) if size > 2 else _descriptors(src, src, platform),
        _transpose_share(src, platform),
        instruction.descriptors,
    )


def _gather_transpose(instruction: program.DmaGatherTranspose, platform: Platform) -> Cost:
    """Rows of the table are read as they lie; the turned side is dense in none."""
    dst, table, rows = instruction.dst, instruction.table, instruction.index.elements
    row_bytes = max(1, dst.elements // rows) * bytes_of(table.element_type)
    return _cost(
        platform,
        Engine.GPSIMD,
        dst.nbytes,
        max(1, _touches_hbm(dst, table)),
        (rows, row_bytes),
        _transpose_share(table, platform),
        DescriptorMode.SOFTWARE,
    )


def _compute(instruction: program.DmaCompute, platform: Platform) -> Cost:
    """Every source is read; sums run at a share of the bandwidth."""
    sources = instruction.srcs or (instruction.dst,)
    count, size = _descriptors(instruction.dst, sources[0], platform)
    return _cost(
        platform,
        instruction.engine,
        sum(src.nbytes for src in sources),
        math.ceil((_touches_hbm(instruction.dst) + _touches_hbm(*sources)) / len(sources)),
        (count * len(sources), size),
        platform.timings.dma.compute_share,
    )


def _exchange(instruction: program.SendReceive, platform: Platform) -> Cost:
    return _copied(platform, instruction.engine, instruction.dst, instruction.src)


def _print(instruction: program.DevicePrint, platform: Platform) -> Cost:
    """A copy to HBM, where the runtime takes it from."""
    return _copied(platform, instruction.engine, instruction.src, instruction.src)


COSTS: Mapping[type[Instruction], Rule] = {
    program.DmaCopy: _copy,
    program.DmaGather: _gather,
    program.DmaScatter: _scatter,
    program.DmaTranspose: _transpose,
    program.DmaGatherTranspose: _gather_transpose,
    program.DmaCompute: _compute,
    program.SendReceive: _exchange,
    program.DevicePrint: _print,
}
