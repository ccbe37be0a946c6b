"""How much of SBUF the tiles of a chain take that holds whole rows."""

from __future__ import annotations

import math

from neuronjax.lower.chain.shortcuts import Shortcuts
from neuronjax.lower.chain.tile_program import Reference, TileProgram
from neuronjax.lower.values.storage import storage_of
from neuronjax.program.element_types import bytes_of


def most_held(program: TileProgram, cuts: Shortcuts, slots: int, shared: int) -> int:
    """Bytes of a partition for the tiles of a row that are held at the same time, at most.

    What is loaded or stored has `slots` tiles; inputs that all rows share have one, as long as
    these take no more than `shared` bytes.
    """
    row = math.prod(program.domain[dim] for dim in program.reduced)
    total = 0
    for source in program.inputs:
        if source.buffer is None or not source.axes & program.reduced:
            continue
        nbytes = row * bytes_of(storage_of(source.dtype).dtype)
        is_shared = source.axes <= program.reduced and nbytes <= shared
        shared -= nbytes if is_shared else 0
        total += nbytes if is_shared else slots * nbytes
    tileless = (cuts.absorbed - set(cuts.squares.values())) | cuts.widened.keys()
    last = _last_uses(program, tileless)
    stored = {output.value for output in program.outputs}
    ends: list[tuple[int, int]] = []
    most = total
    for number, node in enumerate(program.nodes):
        ends = [(end, nbytes) for end, nbytes in ends if end >= number]
        if node.axes & program.reduced and number not in tileless:
            written = cuts.narrowed.get(number, number)
            nbytes = row * bytes_of(storage_of(program.nodes[written].dtype).dtype)
            if Reference(written) in stored:
                total += slots * nbytes
            else:
                ends.append((last[number], nbytes))
        most = max(most, total + sum(nbytes for _, nbytes in ends))
    return most


def _last_uses(program: TileProgram, tileless: frozenset[int] | set[int]) -> list[int]:
    """The last node that reads the tile of each; those without tiles read when theirs do."""
    last = list(range(len(program.nodes)))
    for number in reversed(range(len(program.nodes))):
        end = last[number] if number in tileless else number
        for operand in program.nodes[number].operands:
            if isinstance(operand, Reference) and not operand.is_input:
                last[operand.number] = max(last[operand.number], end)
    return last
