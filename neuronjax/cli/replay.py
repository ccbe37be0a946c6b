"""``neuronjax replay``: runs a recorded program again, bit by bit, and shows its state."""

from __future__ import annotations

import argparse
import sys
from collections import deque

import numpy as np

from neuronjax.cli.arguments import whole
from neuronjax.cli.command import Command
from neuronjax.emulate.core import Executed
from neuronjax.emulate.record import Replay
from neuronjax.program.operand import Buffer
from neuronjax.program.printer import print_instruction
from neuronjax.program.walk import buffers

_DESCRIPTION = """\
Runs a program again that the executor engine recorded, with the same inputs and the same choices of
its scheduler, so that every bit comes out as before. Make records with

  NEURONJAX_EXECUTOR=engine NEURONJAX_RECORD_TO=records python train.py

and step through one of them:

  neuronjax replay records/0003.jit_step.npz --list            buffers you can look into
  neuronjax replay records/0003.jit_step.npz --to 120          the last instructions before that
  neuronjax replay records/0003.jit_step.npz --to 120 --print res0

Exit codes: 0 the run is as recorded, 2 it is not, or the record cannot be read.
"""

_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", metavar="RECORD", help="a file that NEURONJAX_RECORD_TO made")
    parser.add_argument(
        "--to", type=whole(0), metavar="N", help="stop after N instructions of all ranks together"
    )
    parser.add_argument(
        "--print", dest="buffers", action="append", default=[], metavar="BUFFER",
        help="print a buffer then: its name, or KERNEL/NAME for a tile; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--rank", type=whole(0), default=0, help="whose buffer (default: %(default)s)"
    )
    parser.add_argument(
        "--slot", type=whole(0), default=0, help="which slot (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="list the buffers, and run nothing")


def run(arguments: argparse.Namespace) -> int:
    """Replays a record."""
    replay = Replay.load(arguments.record)
    if arguments.list:
        _list(replay)
        return 0
    last: deque[Executed] = deque(maxlen=_SHOWN)
    emulation = replay.run(to=arguments.to, observe=last.append)
    print(
        f"{replay.program.name}: {emulation.executed} instructions of {replay.program.ranks} ranks"
    )
    for executed in last:
        place = " ".join(f"{name}={value}" for name, value in sorted(executed.values.items()))
        print(f"{executed.number:>8} rank {executed.rank} {executed.path} {place}".rstrip())
        print(f"         {print_instruction(executed.instruction)}")
    with np.printoptions(threshold=256, edgeitems=4, linewidth=100):
        for name in arguments.buffers:
            value = emulation.buffer(name, rank=arguments.rank, slot=arguments.slot)
            print(f"%{name} : {value.dtype}{list(value.shape)}")
            print(value)
    if arguments.to is None and replay.digest is not None:
        print(f"results as recorded: sha256 {replay.digest}")
    return 0


def _list(replay: Replay) -> None:
    for place, buffer in buffers(replay.program):
        print(_described(place.path, buffer), file=sys.stdout)


def _described(path: str, buffer: Buffer) -> str:
    kernel = path.partition("/")[2]
    name = f"{kernel}/{buffer.name}" if kernel else buffer.name
    slots = f" x{buffer.slots}" if buffer.slots > 1 else ""
    kind = f"{buffer.memory.value} {buffer.kind.value}"
    return f"{name:<40} {kind:<16} {buffer.dtype.name}{list(buffer.shape)}{slots}"


COMMAND = Command(
    help="run a recorded program again, to any instruction, and print its buffers",
    description=_DESCRIPTION,
    add_arguments=add_arguments,
    run=run,
)
