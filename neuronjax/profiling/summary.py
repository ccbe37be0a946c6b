"""A program's metrics under the field names of Neuron Explorer's summary.

As in Neuron Explorer, times are in seconds and percentages are fractions of one; sizes are in
bytes. Fields about what is not emulated (throttling, instruction fetch) are left out. Source:
Neuron docs, tools/neuron-explorer, summary page, and its profile schema 7.4.0 (table Summary).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from neuronjax.profiling.records import MachineFacts, Profile, ProgramProfile

S = 1e-9
"""Seconds in a nanosecond."""

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")

_SUMS = (
    "hardware_flops", "transpose_flops", "adjusted_hardware_flops", "adjusted_transpose_flops",
    "matmul_instruction_count", "hbm_read_bytes", "hbm_write_bytes", "sbuf_read_bytes",
    "sbuf_write_bytes", "psum_read_bytes", "psum_write_bytes", "spill_save_bytes",
    "spill_reload_bytes", "input_queue_bytes", "output_queue_bytes", "weight_queue_bytes",
    "dma_transfer_count", "dma_transfer_total_bytes",
)  # fmt: skip
"""Fields copied from the sums over instructions."""


def ratio(part: float, whole: float) -> float:
    """`part` / `whole`; 0 if `whole` is 0."""
    return part / whole if whole else 0.0


def summary(program: ProgramProfile, machine: MachineFacts) -> dict[str, Any]:
    """The summary of one run of a program."""
    fields: dict[str, Any] = {
        "total_time": program.total_ns * S,
        "neuroncore_cycle_count": round(program.total_ns * S * machine.base_clock_hz),
        "model_flops": program.model_flops,
        **{name: program.work.get(name, 0) for name in _SUMS},
    }
    for engine in ENGINES:
        fields |= _engine(program, engine)
    fields |= _dma(program) | _collectives(program) | _sizes(program)
    return fields | percentages(program, machine)


def _engine(program: ProgramProfile, engine: str) -> dict[str, Any]:
    busy = program.busy_ns.get(engine, 0.0)
    time = sum(opcode.time_ns for opcode in program.opcodes if opcode.engine == engine)
    return {
        f"{engine}_engine_instruction_time": time * S,
        f"{engine}_engine_instruction_count": program.instruction_counts.get(engine, 0),
        f"{engine}_engine_active_time": busy * S,
        f"{engine}_engine_active_time_percent": ratio(busy, program.total_ns),
    }


def _dma(program: ProgramProfile) -> dict[str, Any]:
    active = min(
        program.total_ns, sum(kernel.dma_active_ns * kernel.runs for kernel in program.kernels)
    )
    transfers = [opcode for opcode in program.opcodes if opcode.engine == "dma"]
    count = program.work.get("dma_transfer_count", 0)
    queues = {
        span.lane for kernel in program.kernels for span in kernel.spans if "queue" in span.lane
    }
    return {
        "dma_active_time": active * S,
        "dma_active_time_percent": ratio(active, program.total_ns),
        "dma_transfer_time": sum(opcode.time_ns for opcode in transfers) * S,
        "dma_transfer_average_bytes": ratio(program.work.get("dma_transfer_total_bytes", 0), count),
        "dma_queue_count": len(queues),
    }


def _collectives(program: ProgramProfile) -> dict[str, Any]:
    active = program.busy_ns.get("collective", 0.0)
    return {
        "cc_op_time": sum(
            collective.time_ns * collective.runs for collective in program.collectives
        )
        * S,
        "cc_op_active_time": active * S,
        "cc_op_active_time_percent": ratio(active, program.total_ns),
        "cc_op_count": sum(collective.runs for collective in program.collectives),
    }


def _sizes(program: ProgramProfile) -> dict[str, Any]:
    hbm = program.hbm_bytes
    return {
        "weight_size_bytes": hbm.get("constant", 0),
        "inputs_outputs_weights_size_bytes": sum(
            hbm.get(kind, 0) for kind in ("argument", "result", "constant")
        ),
    }


def percentages(program: ProgramProfile, machine: MachineFacts) -> dict[str, float]:
    """Utilisation by Neuron Explorer's definitions; fractions of one."""
    seconds = program.total_ns * S
    work = program.work
    traffic = work.get("hbm_read_bytes", 0) + work.get("hbm_write_bytes", 0)
    hardware, transposes = work.get("hardware_flops", 0), work.get("transpose_flops", 0)
    balance = machine.max_flops / machine.max_hbm_bandwidth
    reads = work.get("hbm_read_bytes", 0)
    reloaded = work.get("spill_reload_bytes", 0)
    return {
        "mfu_estimated_percent": ratio(program.model_flops, machine.max_flops * seconds),
        "hfu_estimated_percent": ratio(hardware, machine.max_flops * seconds),
        "mbu_estimated_percent": ratio(traffic, machine.max_hbm_bandwidth * seconds),
        "mfu_max_achievable_estimated_percent": min(
            1.0, ratio(ratio(program.model_flops, traffic), balance)
        ),
        "mm_arithmetic_intensity": ratio(hardware - transposes, traffic),
        "peak_flops_bandwidth_ratio": balance,
        "useful_read_percent": ratio(reads - reloaded, reads) if reads else 1.0,
    }


def document(profile: Profile) -> Mapping[str, Any]:
    """The contents of summary.json: programs by name, as ``view --output-format summary-json``."""
    names = names_of(profile)
    return {
        name: {
            "is_simulation": True,
            "target": profile.machine.target,
            "logical_neuroncore_config": profile.machine.lnc,
            "ranks": program.ranks,
            "trace_count": count,
            "total_exec_time": program.total_ns * count * S,
            "error": program.error,
            "assumed": list(program.assumed),
            **summary(program, profile.machine),
        }
        for name, program, count in zip(names, profile.programs, profile.counts, strict=True)
    }


def names_of(profile: Profile) -> list[str]:
    """Unique names of programs: the second program of a name gets the suffix ``.2``."""
    seen: Counter[str] = Counter()
    names = []
    for program in profile.programs:
        seen[program.name] += 1
        again = seen[program.name] > 1
        names.append(f"{program.name}.{seen[program.name]}" if again else program.name)
    return names
