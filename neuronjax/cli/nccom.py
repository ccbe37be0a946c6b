"""``neuronjax nccom``: ``nccom-test`` on the timing model.

Flags, table and units are those of tools/neuron-sys-tools/nccom-test.rst. Despite their names, its
columns ``algbw(GB/s)`` and ``busbw(GB/s)`` are in GiB/s.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from neuronjax.cli.arguments import amount, whole
from neuronjax.errors import ConfigurationError, TopologyError, quoted
from neuronjax.machine.axes import MOST_RANKS
from neuronjax.machine.machine import Machine
from neuronjax.planning import what_if
from neuronjax.planning.estimate import DEFAULT_TARGET
from neuronjax.timing.calibration import Calibration
from neuronjax.timing.network import Op, collective_time
from neuronjax.timing.ranges import Range, Traits, range_of

GIB = 1 << 30
_MOST_ROWS = 1_000

OPS: Mapping[str, Op] = {
    "all_reduce": Op.ALL_REDUCE,
    "allr": Op.ALL_REDUCE,
    "all_gather": Op.ALL_GATHER,
    "allg": Op.ALL_GATHER,
    "reduce_scatter": Op.REDUCE_SCATTER,
    "redsct": Op.REDUCE_SCATTER,
    "alltoall": Op.ALL_TO_ALL,
    "permute": Op.PERMUTE,
    "sendrecv": Op.PERMUTE,
}
"""nccom-test's name of an operation -> operation."""

DTYPES: Mapping[str, int] = {
    "uint8": 1, "int8": 1, "fp8": 1, "bf16": 2, "fp16": 2, "int16": 2, "uint16": 2, "fp32": 4,
    "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
}  # fmt: skip
"""nccom-test's name of an element type -> bytes of an element."""

NOT_MODELLED_WITHIN = (
    "not modelled: warm-up, variation from run to run, other users of the network, and link errors."
)
NOT_MODELLED = (
    f"{NOT_MODELLED_WITHIN} In a program collectives have fewer queues: --in-program shows their "
    "time there."
)

DESCRIPTION = """\
Times a collective on the links of a machine, as nccom-test does on a real one: the same flags, the
same table. As there, the bandwidths are GiB/s although the headings say GB/s, and times have no
launch cost. Ranks that do not fit on one machine are on more machines of its kind. All iterations
are alike: the first ones are not slower, and nothing varies from run to run.

A benchmark has the queues of all engines for its collective. In a program, kernels use those
queues, so collectives use rings (--in-program), and a step's kernels run beside them.

Example: neuronjax nccom -r 64 -b 8 -e 1GB -f 2 -d bf16 allr --target=trn2.48xlarge
"""


@dataclass(frozen=True)
class Row:
    """The results for one size."""

    size_bytes: int
    count_elements: int
    dtype: str
    time_us: float
    algorithm_bandwidth: float
    bus_bandwidth: float
    """GiB/s."""
    algorithm: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", choices=OPS)
    parser.add_argument("-r", "--nworkers", type=whole(1, MOST_RANKS), required=True, help="ranks")
    parser.add_argument(
        "-N", "--nnodes", type=whole(1, MOST_RANKS), default=1, help="machines the ranks are on"
    )
    parser.add_argument("-b", "--minbytes", type=_size, default=32 << 20, help="(default: 32MB)")
    parser.add_argument("-e", "--maxbytes", type=_size, help="(default: as --minbytes)")
    parser.add_argument("-f", "--stepfactor", type=amount, default=2.0, help="(default: 2)")
    parser.add_argument("-i", "--stepbytes", type=_size, help="step between sizes, not a factor")
    parser.add_argument("-d", "--datatype", choices=DTYPES, default="uint8")
    parser.add_argument("-n", "--iters", type=whole(1), default=20, help="accepted; all are alike")
    parser.add_argument("-w", "--warmup_iters", type=whole(0), default=5, help="accepted")
    parser.add_argument(
        "--in-program", action="store_true", help="as in a program, not as in the benchmark"
    )
    parser.add_argument("--show-algorithm", action="store_true", help="one more column")
    parser.add_argument("--report-to-json-file", metavar="FILE")
    parser.add_argument("--target", default=DEFAULT_TARGET, help="(default: %(default)s)")
    parser.add_argument("--lnc", type=whole(1))
    parser.add_argument("--machine", metavar="FILE", help="TOML file that changes the target")


_SIZE = re.compile(r"(\d{1,15})\s*([KMG]?)i?B?", re.IGNORECASE | re.ASCII)


def _size(text: str) -> int:
    """``8``, ``64KB``, ``1GB`` in bytes; units are binary, as in nccom-test."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a size such as 8, 64KB or 1GB")
    return int(match[1]) << 10 * " KMG".index(match[2].upper() or " ")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    machine, calibration = what_if.machine_of(arguments.target, arguments.lnc, arguments.machine)
    ranks = _ranks(arguments.nworkers, arguments.nnodes, machine)
    sizes = list(islice(_sizes(arguments), _MOST_ROWS + 1))
    if len(sizes) > _MOST_ROWS:
        raise ConfigurationError(
            f"the table would have more than {_MOST_ROWS} rows; take a larger step with -f or -i."
        )
    rows = [_row(arguments, size, ranks, machine, calibration) for size in sizes]
    print(text(rows, arguments.show_algorithm))
    trusted = _find_range(len(ranks), machine, arguments)
    if trusted is not None:
        print(
            f"80 % of measurements would lie within {trusted.low_ns:.2f} to {trusted.high_ns:.2f}"
            f" of these times, by: {trusted.basis}",
            file=sys.stderr,
        )
    print(NOT_MODELLED if not arguments.in_program else NOT_MODELLED_WITHIN, file=sys.stderr)
    if arguments.report_to_json_file:
        report: dict[str, Any] = {"target": machine.target, "ranks": len(ranks), "op": arguments.op}
        if trusted is not None:
            report |= {"range": trusted[:2], "basis": trusted.basis}
        report["results"] = [asdict(row) for row in rows]
        Path(arguments.report_to_json_file).write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _find_range(ranks: int, machine: Machine, arguments: argparse.Namespace) -> Range | None:
    """The range of times as factors, and what says so; None: nothing public was measured so."""
    if arguments.in_program:
        return None
    traits = Traits(
        chip=machine.chip.name,
        ranks=ranks,
        is_collective=True,
        collective_share=1.0,
        is_changed=arguments.machine is not None,
    )
    return range_of(1.0, traits)


def _ranks(workers: int, nodes: int, machine: Machine) -> list[int]:
    """The cores of the ranks, machine by machine."""
    if workers % nodes:
        raise TopologyError(f"{workers} ranks cannot be divided evenly over {nodes} machines.")
    per_node = workers // nodes
    cores = machine.core_count
    if nodes == 1 and workers > cores and workers % cores == 0:
        return list(range(workers))
    if per_node > cores:
        raise TopologyError(
            f"{per_node} ranks do not fit {machine}, which has {cores} cores; give fewer with -r,"
            " or more machines with -N."
        )
    return [node * cores + core for node in range(nodes) for core in range(per_node)]


def _sizes(arguments: argparse.Namespace) -> Iterator[int]:
    """Sizes in bytes of whole elements, from the least to the greatest."""
    least, most = arguments.minbytes, arguments.maxbytes or arguments.minbytes
    if least < 1 or most < least or (arguments.stepbytes is None and arguments.stepfactor <= 1):
        raise ConfigurationError(
            f"sizes from {least} to {most} by {arguments.stepbytes or arguments.stepfactor}: they "
            "must ascend, and the factor must be greater than 1."
        )
    width = DTYPES[arguments.datatype]
    size = float(least)
    while size <= most:
        yield max(1, int(size) // width) * width
        size = size + arguments.stepbytes if arguments.stepbytes else size * arguments.stepfactor


def _row(
    arguments: argparse.Namespace,
    size: int,
    ranks: list[int],
    machine: Machine,
    calibration: Calibration,
) -> Row:
    timed = collective_time(
        OPS[arguments.op],
        size,
        ranks,
        machine,
        in_program=arguments.in_program,
        calibration=calibration,
    )
    return Row(
        size_bytes=size,
        count_elements=size // DTYPES[arguments.datatype],
        dtype=arguments.datatype,
        time_us=timed.total_ns / 1e3,
        algorithm_bandwidth=timed.algorithm_bandwidth / GIB,
        bus_bandwidth=timed.bus_bandwidth / GIB,
        algorithm=timed.algorithm,
    )


_HEADINGS = ("size(B)", "count(elems)", "type", "time:avg(us)", "algbw(GB/s)", "busbw(GB/s)")


def text(rows: list[Row], show_algorithm: bool = False) -> str:
    """The table, and the mean of its last column."""
    lines = [(*_HEADINGS, *(["algorithm"] if show_algorithm else []))]
    for row in rows:
        cells = (
            str(row.size_bytes), str(row.count_elements), row.dtype, f"{row.time_us:.2f}",
            f"{row.algorithm_bandwidth:.2f}", f"{row.bus_bandwidth:.2f}",
        )  # fmt: skip
        lines.append((*cells, *([row.algorithm] if show_algorithm else [])))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    body = ["    ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
    mean = sum(row.bus_bandwidth for row in rows) / len(rows)
    return "\n".join([*body, f"Avg bus bandwidth: {mean:.4f}GB/s"])
