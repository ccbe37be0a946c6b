"""Tables by the names of Neuron Explorer's parquet files; they need pyarrow (extra ``profile``)."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from neuronjax.profiling.events import starts
from neuronjax.profiling.records import Profile, ProgramProfile
from neuronjax.profiling.summary import names_of, ratio, summary

FOLDER = "parquet"

_log = logging.getLogger("neuronjax.profile")

Row = Mapping[str, Any]
_Maker = Callable[[Profile, str, ProgramProfile], Iterator[Row]]


def _summary(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    yield {"is_simulation": True, **summary(program, profile.machine)}


def _instructions(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    """The detailed instructions: of the beginning of every kernel's first run."""
    number = 0
    for each in program.kernels:
        first = number
        for span in each.spans:
            start = round(each.start_ns + span.start)
            cause = each.spans[span.after] if span.after >= 0 else None
            yield {
                "id": number, "engine": span.lane, "opcode": span.mnemonic, "timestamp": start,
                "duration": round(span.end - span.start), "hlo_name": each.name,
                "nki_source_location": each.source,
                "released_by_id": first + span.after if cause else None,
                "released_at": round(each.start_ns + cause.end) if cause else None,
            }  # fmt: skip
            number += 1


def _kernels(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    for each in program.kernels:
        yield {
            "hlo_name": each.name, "path": each.path, "operations": ", ".join(each.operations),
            "source": each.source, "runs": each.runs, "start_ts": round(each.start_ns),
            "end_ts": round(each.end_ns), "duration": round(each.duration_ns),
            "critical": each.critical,
            **{key: each.work.get(key, 0) for key in _MOVED},
            **{f"{key}_active_time": round(time) for key, time in each.busy_ns.items()},
        }  # fmt: skip


_MOVED = (
    "hbm_read_bytes", "hbm_write_bytes", "sbuf_read_bytes", "sbuf_write_bytes",
    "spill_save_bytes", "spill_reload_bytes", "hardware_flops", "transpose_flops",
)  # fmt: skip


def _collectives(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    for each in program.collectives:
        largest = max(each.input_size, each.output_size)
        bandwidth = ratio(largest, each.time_ns)  # bytes per ns: GB/s
        yield {
            "operation": each.operation, "op_id": each.op_id, "stream_id": each.stream_id,
            "dtype": each.dtype, "input_size": each.input_size, "output_size": each.output_size,
            "replica_group": each.replica_group, "trigger_engine": "sync", "count": each.runs,
            "timestamp": round(each.start_ns), "duration": round(each.time_ns),
            "algorithm_bandwidth": bandwidth,
            "bus_bandwidth": bandwidth * bus_factor(each.operation, each.ranks),
        }  # fmt: skip


def bus_factor(operation: str, ranks: int) -> float:
    """Bus over algorithm bandwidth, as nccom-test defines it."""
    share = (ranks - 1) / ranks if ranks else 0.0
    return {"all_reduce": 2 * share, "permute": 1.0}.get(operation, share)


def _opcodes(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    for each in program.opcodes:
        yield {
            "engine": each.engine, "opcode": each.opcode, "instruction_count": each.count,
            "instruction_time_ns": round(each.time_ns),
            "active_time_ns_percent": ratio(each.time_ns, program.total_ns),
        }  # fmt: skip


def _hbm(profile: Profile, name: str, program: ProgramProfile) -> Iterator[Row]:
    fixed = sum(program.hbm_bytes.get(kind, 0) for kind in ("argument", "result", "constant"))
    for each in program.kernels:
        for start in starts(each, 1):
            yield {
                "timestamp": round(start), "usage_bytes": fixed + each.hbm_scratch_bytes,
                "scratchpad_bytes": each.hbm_scratch_bytes,
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
    """Writes the tables that have rows; says so if pyarrow is not there."""
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        _log.warning(
            "no parquet tables are written: pyarrow is not installed (pip install "
            "'neuronjax[profile]'). The other files are complete."
        )
        return
    (folder / FOLDER).mkdir(exist_ok=True)
    for table in TABLES:
        found = rows(profile, table)
        if found:
            made = pyarrow.Table.from_pylist([dict(row) for row in found])
            parquet.write_table(made, folder / FOLDER / f"{table}.parquet")
