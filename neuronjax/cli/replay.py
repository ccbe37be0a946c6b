"""``neuronjax replay``: runs a recorded program again, bit by bit, and shows its state."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Mapping

import numpy as np

from neuronjax.cli.arguments import whole
from neuronjax.display import counted
from neuronjax.emulate.core import Executed
from neuronjax.emulate.record import Replay
from neuronjax.errors import RecordError
from neuronjax.program.operand import Buffer
from neuronjax.program.printer import print_instruction
from neuronjax.program.user_lines import lines_by_path
from neuronjax.program.walk import buffers

DESCRIPTION = """\
Runs a program again that the executor engine recorded, or an NKI kernel, with the same inputs and
the same choices of its scheduler, so that every bit comes out as before. Make records with

  NEURONJAX_EXECUTOR=engine NEURONJAX_RECORD_TO=records python train.py
  neuronjax nki run softmax.py:softmax --shapes=256x64 --record_to=softmax.npz

and step through one of them:

  neuronjax replay records/0003.jit_step.npz --list            buffers you can look into
  neuronjax replay records/0003.jit_step.npz --to 120          the last instructions before that
  neuronjax replay records/0003.jit_step.npz --to 120 --print res0
  neuronjax replay softmax.npz --at softmax.py:21 --print softmax/scores_2

Exit codes: 0 the run is as recorded, 2 it is not, or the record cannot be read.
"""

_SHOWN = 8
_MOST_LINES = 20
"""Lines that an error names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", metavar="RECORD", help="a file that such a run made")
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--to", type=whole(0), metavar="N", help="stop after N instructions of all ranks together"
    )
    place.add_argument(
        "--at", metavar="FILE:LINE", help="stop before the instructions of a line of the source"
    )
    parser.add_argument(
        "--visit", type=whole(1), default=1, metavar="N",
        help="with --at: when the line is reached for the N-th time (default: %(default)s)",
    )  # fmt: skip
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
    lines = lines_by_path(replay.program)
    to = arguments.to
    if arguments.at is not None:
        to = _before(replay, lines, arguments.at, arguments.visit, arguments.rank)
    last: deque[Executed] = deque(maxlen=_SHOWN)
    emulation = replay.run(to=to, observe=last.append)
    print(
        f"{replay.program.name}: {emulation.executed} instructions of {replay.program.ranks} ranks"
    )
    for executed in last:
        place = " ".join(f"{name}={value}" for name, value in sorted(executed.values.items()))
        line = lines.get(executed.path, "")
        words = f"{executed.number:>8} rank {executed.rank} {executed.path} {place}".rstrip()
        print(f"{words}  {line}".rstrip())
        print(f"         {print_instruction(executed.instruction)}")
    with np.printoptions(threshold=256, edgeitems=4, linewidth=100):
        for name in arguments.buffers:
            value = emulation.buffer(name, rank=arguments.rank, slot=arguments.slot)
            print(f"%{name} : {value.dtype}{list(value.shape)}")
            print(value)
    if to is None and replay.digest is not None:
        print(f"results as recorded: sha256 {replay.digest}")
    return 0


class _Reached(Exception):
    """Ends a replay at the line that is looked for."""


def _before(replay: Replay, lines: Mapping[str, str], place: str, visit: int, rank: int) -> int:
    """How many instructions execute before a rank reaches a line for the `visit`-th time.

    RecordError: it does not, or no instruction is of that line.
    """
    wanted = {path for path, line in lines.items() if f"/{line}".endswith(f"/{place}")}
    if not wanted:
        known = sorted(set(lines.values()), key=_by_number)
        raise RecordError(
            f"{replay.program.name} has no instruction of {place}; its instructions are of "
            f"{', '.join(known[:_MOST_LINES])}."
        )
    first: str | None = None
    visits = number = 0

    def observe(executed: Executed) -> None:
        nonlocal first, visits, number
        if executed.rank != rank or executed.path not in wanted:
            return
        first = first or executed.path
        visits += executed.path == first
        if visits == visit:
            number = executed.number
            raise _Reached

    try:
        replay.run(observe=observe)
    except _Reached:
        return number - 1
    raise RecordError(
        f"rank {rank} of {replay.program.name} reaches {place} {counted(visits, 'time')}, not "
        f"{visit}."
    )


def _by_number(line: str) -> tuple[str, int]:
    file, _, number = line.rpartition(":")
    return file, int(number) if number.isdigit() else 0


def _list(replay: Replay) -> None:
    for place, buffer in buffers(replay.program):
        print(_describe(place.path, buffer), file=sys.stdout)


def _describe(path: str, buffer: Buffer) -> str:
    kernel = path.partition("/")[2]
    name = f"{kernel}/{buffer.name}" if kernel else buffer.name
    slots = f" x{buffer.slots}" if buffer.slots > 1 else ""
    kind = f"{buffer.memory.value} {buffer.kind.value}"
    return f"{name:<40} {kind:<16} {buffer.dtype.name}{list(buffer.shape)}{slots}"
