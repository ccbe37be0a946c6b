"""The tables of Neuron Explorer's parquet files. Needs pyarrow (extra ``profile``)."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from neuronjax.profiling.records import Collective, Profile, ProgramProfile
from neuronjax.profiling.summary import names_of, ratio, summary
from neuronjax.timing.network import BUS_FACTORS, Op

FOLDER = "parquet"

_log = logging.getLogger("neuronjax.profile")

Row = Mapping[str, Any]
_Maker = Callable[[Profile, str, ProgramProfile], Iterator[Row]]


def _summary(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    yield {"is_simulation": True, **summary(program, profile.machine)}


def _instructions(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    """The detailed instructions: those at the beginning of every kernel's first run."""
    number = 0
    for kernel in program.kernels:
        first = number
        for span in kernel.spans:
            start = round(kernel.start_ns + span.start)
            cause = kernel.spans[span.after] if span.after >= 0 else None
            yield {
                "id": number, "engine": span.lane, "opcode": span.mnemonic, "timestamp": start,
                "duration": round(span.end - span.start), "hlo_name": kernel.name,
                "nki_source_location": kernel.source,
                "released_by_id": first + span.after if cause else None,
                "released_at": round(kernel.start_ns + cause.end) if cause else None,
            }  # fmt: skip
            number += 1


def _kernels(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    for kernel in program.kernels:
        yield {
            "hlo_name": kernel.name, "path": kernel.path,
            "operations": ", ".join(kernel.operations), "source": kernel.source,
            "runs": kernel.runs, "start_ts": round(kernel.start_ns),
            "end_ts": round(kernel.end_ns), "duration": round(kernel.span_ns),
            "added_duration": round(kernel.added_ns),
            "critical": kernel.critical,
            **{key: kernel.work.get(key, 0) for key in _KERNEL_SUMS},
            **{f"{key}_active_time": round(time) for key, time in kernel.busy_ns.items()},
        }  # fmt: skip


_KERNEL_SUMS = (
    "hbm_read_bytes", "hbm_write_bytes", "sbuf_read_bytes", "sbuf_write_bytes",
    "spill_save_bytes", "spill_reload_bytes", "hardware_flops", "transpose_flops",
)  # fmt: skip


def _collectives(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    for collective in program.collectives:
        largest = max(collective.input_size, collective.output_size)
        bandwidth = ratio(largest, collective.time_ns)  # bytes per ns: GB/s
        yield {
            "operation": collective.operation, "op_id": collective.op_id,
            "stream_id": collective.stream_id, "dtype": collective.dtype,
            "input_size": collective.input_size, "output_size": collective.output_size,
            "replica_group": _replica_group(collective), "trigger_engine": "sync",
            "count": collective.runs, "timestamp": round(collective.start_ns),
            "duration": round(collective.time_ns),
            "algorithm_bandwidth": bandwidth,
            "bus_bandwidth": bandwidth * bus_factor(collective.operation, collective.ranks),
        }  # fmt: skip


def _replica_group(collective: Collective) -> str:
    return str([list(group) for group in collective.groups]) if collective.groups else ""


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth divided by algorithm bandwidth, as nccom-test defines them."""
    return BUS_FACTORS[Op(operation)](ranks) if ranks else 0.0


def _opcodes(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    for opcode in program.opcodes:
        yield {
            "engine": opcode.engine, "opcode": opcode.opcode, "instruction_count": opcode.count,
            "instruction_time_ns": round(opcode.time_ns),
            "active_time_ns_percent": ratio(opcode.time_ns, program.total_ns),
        }  # fmt: skip


def _hbm(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    fixed = sum(program.hbm_bytes.get(kind, 0) for kind in ("argument", "result", "constant"))
    for at, nbytes in [(0.0, 0), *program.levels.get("hbm", ())]:
        yield {
            "timestamp": round(at), "usage_bytes": fixed + nbytes, "scratchpad_bytes": nbytes,
            "inputs_outputs_weights_bytes": fixed,
        }  # fmt: skip


TABLES: Mapping[str, _Maker] = {
    "Summary": _summary,
    "Instruction": _instructions,
    "HloInstruction": _kernels,
    "CcOp": _collectives,
    "OpcodeSummary": _opcodes,
    "HbmUsage": _hbm,
}
"""Name of a table -> its rows of one program."""


def rows(profile: Profile, table: str) -> list[Row]:
    """A table of all programs; times are ns from a run's start."""
    names = zip(names_of(profile), profile.programs, strict=True)
    return [
        {"program": name, **row}
        for name, program in names
        for row in TABLES[table](profile, name, program)
    ]


def write(profile: Profile, folder: Path) -> None:
    """Writes the tables that have rows; logs a warning if pyarrow is not installed."""
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        _log.warning(
            "Parquet tables were not written: pyarrow is not installed (pip install "
            "'neuronjax[profile]'). The other files are complete."
        )
        return
    (folder / FOLDER).mkdir(exist_ok=True)
    for table in TABLES:
        contents = rows(profile, table)
        if contents:
            made = pyarrow.Table.from_pylist([dict(row) for row in contents])
            parquet.write_table(made, folder / FOLDER / f"{table}.parquet")
