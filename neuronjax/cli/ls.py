"""``neuronjax ls``: the machine as ``neuron-ls`` prints it (tools/neuron-sys-tools/neuron-ls.rst).

Columns that only a real host has (PCI addresses, processes, NUMA nodes) are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from neuronjax import options
from neuronjax.cli.arguments import whole
from neuronjax.machine.machine import Machine
from neuronjax.planning import what_if

GIB = 1 << 30

NOT_MODELLED = (
    "not modelled: PCI addresses, CPU affinity and NUMA nodes, which are the host's, and processes."
)

DESCRIPTION = """\
Prints the chips of a machine, their cores, memory and links, as neuron-ls does on a real one. All
machines of an UltraServer are shown. The default is the machine that JAX programs see. PCI
addresses, CPU affinity, NUMA nodes and processes are not modelled: the table lacks them, and the
JSON names them in "invented".

Example: neuronjax ls --target=trn2.48xlarge --topology
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-t", "--topology", action="store_true", help="draw the links")
    parser.add_argument(
        "-j", "--json-output", action="store_true", help="print a JSON list of devices"
    )
    parser.add_argument("--target", help="machine, such as trn1.32xlarge (default: as configured)")
    parser.add_argument("--lnc", type=whole(1), help="physical cores per logical core")
    parser.add_argument("--machine", metavar="FILE", help="TOML file that changes the target")


def run(arguments: argparse.Namespace) -> int:
    """Prints the machine."""
    given = {name: getattr(arguments, name) for name in ("target", "lnc")}
    chosen = options.load(**{name: value for name, value in given.items() if value is not None})
    machine, _ = what_if.machine_of(chosen.target, chosen.lnc, arguments.machine)
    if arguments.json_output:
        print(json.dumps(records(machine), indent=4))
    else:
        print(text(machine))
        print(NOT_MODELLED, file=sys.stderr)
        if arguments.topology:
            print(f"\nNeuron Device Topology\n{drawn(machine)}")
    return 0


def records(machine: Machine) -> list[dict[str, Any]]:
    """A record per chip, with the fields of ``neuron-ls --json-output``; `invented` names those
    that an emulated machine has no values for."""
    return [_record(machine, chip) for chip in range(machine.instance.chips)]


def _record(machine: Machine, chip: int) -> dict[str, Any]:
    cores = machine.cores_per_chip
    return {
        "neuron_device": chip,
        **_invented(chip),
        "connected_to": list(machine.topology.neighbours(chip)),
        "nc_count": cores,
        "logical_neuroncore_config": machine.lnc,
        "memory_size": machine.chip.hbm.capacity_bytes,
        "neuroncore_ids": list(range(chip * cores, (chip + 1) * cores)),
        "neuron_processes": [],
        "invented": list(_invented(chip)),
    }


def _invented(chip: int) -> dict[str, Any]:
    """Facts of a host that an emulated one lacks: an address on its PCI bus, its processors near
    the chip, and -1, which says on Linux that a device belongs to no NUMA node."""
    return {"bdf": f"0000:{_FIRST_BUS + chip:02x}:00.0", "cpu_affinity": "", "numa_node": -1}


_FIRST_BUS = 0x10


_HEADINGS = (
    ("NEURON", "DEVICE"),
    ("NEURON", "CORES"),
    ("NEURON", "CORE IDS"),
    ("NEURON", "MEMORY"),
    ("CONNECTED", "DEVICES"),
)


def text(machine: Machine) -> str:
    """The table of the machine's chips."""
    rows = [tuple(column[line] for column in _HEADINGS) for line in range(2)]
    body = [_row(record) for record in records(machine)]
    widths = [max(map(len, column)) for column in zip(*rows, *body, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [f"instance-type: {machine.target}"]
    if len(machine.chip.allowed_lncs) > 1:
        lines.append(f"logical-neuroncore-config: {machine.lnc}")
    head = [_frame(row, widths, center=True) for row in rows]
    lines += [rule, *head, rule, *(_frame(row, widths) for row in body), rule]
    return "\n".join(lines)


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    ids = record["neuroncore_ids"]
    return (
        str(record["neuron_device"]),
        str(record["nc_count"]),
        f"{ids[0]}-{ids[-1]}" if len(ids) > 1 else str(ids[0]),
        f"{record['memory_size'] // GIB} GB",
        ", ".join(map(str, record["connected_to"])),
    )


def _frame(row: Sequence[str], widths: Sequence[int], center: bool = False) -> str:
    cells = (
        cell.center(width) if center else cell.ljust(width)
        for cell, width in zip(row, widths, strict=True)
    )
    return "| " + " | ".join(cells) + " |"


def drawn(machine: Machine) -> str:
    """A drawing of chips in rows along the innermost axis, with their links and closed rings."""
    topology = machine.topology
    width = topology.shape[-1]
    rows = [range(first, first + width) for first in range(0, topology.chips, width)]
    plane = topology.shape[-2] if len(topology.shape) > 1 else 1
    lines: list[str] = []
    for number, row in enumerate(rows):
        if number and number % plane == 0:
            lines.append("")
        elif number:
            lines.append("".join("   ||   " for _ in row).rstrip())
        lines.append("==".join(f"[ {chip:>2} ]" for chip in row))
    return "\n".join([*lines, "", f"{topology}"])
