"""Constants that no page states, fitted to public measurements; each names its points.

The points (K2, …) are those of `neuronjax.timing.validation`. Documented numbers are in
`neuronjax.machine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """All fitted constants. Cycles are those of the engine, times are ns."""

    #: Part of the access to SBUF or PSUM that the next Vector or Scalar instruction cannot hide.
    exposed_access_cycles: float = 48.0
    #: From the last element issued to results in memory: two accesses and the arithmetic pipeline.
    engine_latency_cycles: float = 158.0
    #: From a semaphore's last increment to the start of the instruction that waits for it.
    wake_ns: float = 30.0
    #: From the last row of `moving` issued to results in PSUM: filling the array, and accesses.
    tensor_latency_ns: float = 160.0
    #: An instruction that is nothing but its semaphores.
    semaphore_event_ns: float = 9.0
    #: Loading the tables of another activation function.
    activation_table_ns: float = 368.0
    #: From a DMA's trigger to its first byte, if its descriptors are with the engines: doorbell.
    dma_start_ns: float = 600.0
    #: From its last byte to its semaphore: write receipt, semaphore.
    dma_completion_ns: float = 800.0
    #: One descriptor element, beside its bytes.
    dma_run_ns: float = 1.0
    #: Before the first and after the last kernel of a program, by version of the core.
    prologue_ns: Mapping[int, float] = field(
        hash=False, default_factory=lambda: {1: 12_000.0, 2: 12_000.0, 3: 3_200.0, 4: 3_200.0}
    )
    epilogue_ns: Mapping[int, float] = field(
        hash=False, default_factory=lambda: {1: 3_500.0, 2: 3_500.0, 3: 0.0, 4: 0.0}
    )
    #: DMA engines' worth of bandwidth that collectives of one physical core have.
    collective_engines: float = 5.0
    #: Share of that bandwidth in a mesh, whose links are over-subscribed.
    mesh_share: float = 0.36
    #: Extra link time of recursive doubling, whose links are partly over-subscribed.
    doubling_excess: float = 1.2
    #: Starting a collective and telling that it is done.
    collective_base_ns: float = 3_200.0
    #: Launch by the older collective benchmark, part of its times. No part of programs.
    benchmark_launch_ns: float = 40_000.0
    #: The least time of a step of a ring over the ranks of an instance, in the releases of that
    #: older benchmark. No part of programs.
    benchmark_step_ns: float = 8_600.0
    #: A call of a whole program by its host beside the program itself: runtime, driver, doorbells.
    #: What was measured on version 3 (K16) includes it.
    host_call_ns: Mapping[int, float] = field(
        hash=False, default_factory=lambda: {1: 90_000.0, 2: 90_000.0, 3: 0.0, 4: 0.0}
    )
    #: What the host does for a first token, part of published times: prompts are embedded and
    #: written, tokens are drawn. No part of programs.
    first_token_host_ns: float = 5_200_000.0


CALIBRATION = Calibration()

FITTED: Mapping[str, tuple[str, ...]] = {
    "exposed_access_cycles": ("K1 Vector",),
    "engine_latency_cycles": ("K5 latency",),
    "wake_ns": ("K5 interval",),
    "tensor_latency_ns": ("K2 latency", "K3"),
    "semaphore_event_ns": ("K8",),
    "activation_table_ns": ("K10 table",),
    "dma_start_ns": ("K13 store",),
    "dma_completion_ns": ("K13 load",),
    "dma_run_ns": ("K12",),
    "prologue_ns": ("K10 prologue", "K16"),
    "epilogue_ns": ("K10 epilogue", "K16"),
    "collective_engines": ("all-reduce 64 MiB", "all-reduce 256 MiB", "all-reduce 1 GiB"),
    "mesh_share": ("all-gather 64 KiB", "all-gather 512 KiB"),
    "doubling_excess": ("all-gather 512 KiB",),
    "collective_base_ns": ("all-gather 1 KiB",),
    "benchmark_launch_ns": ("all-reduce 1 MiB", "all-reduce 4 MiB", "all-reduce 16 MiB"),
    "benchmark_step_ns": (
        "all-reduce 1 KiB", "all-reduce 64 KiB", "all-reduce 256 KiB", "all-reduce-16 1 KiB",
    ),
    "host_call_ns": ("M1", "M2", "M10"),
    "first_token_host_ns": ("M4 prefill", "M5 prefill"),
}  # fmt: skip
"""Constant -> the points that it was fitted to."""

CHOSEN: Mapping[str, tuple[str, ...]] = {
    "block sizes of the matmul, which are not published": ("K1 Vector", "K1 DMA"),
    "an engine follows close behind results that it streams": ("K14 total",),
    "software pipelining of attention, whose schedule is not published": ("K15 FP32", "K15 BF16"),
    "the start of a transfer with descriptors in HBM": ("K17",),
    "one ring over instances, its steps and its least size": (
        "all-reduce-64 1 MiB", "all-reduce-64 64 MiB", "all-reduce-64 1 GiB",
    ),
    "a part of a torus is a ring": ("all-gather-8 1 KiB", "all-gather-8 512 KiB"),
    "collectives of programs go round rings of chips": ("M4 token", "M5 token", "M6 token"),
    "what is lowered to which instructions, and which kernels overlap; no number was fitted": (
        "M1", "M2", "M2 batch 8", "M3", "M3 batch 8", "M4 prefill", "M4 token", "M5 prefill",
        "M5 token", "M6 token", "M7", "M8", "M9",
    ),
}  # fmt: skip
"""Choices without a number that were made with a point in view: it counts as calibrated, too."""
