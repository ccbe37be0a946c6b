"""Engines that the compiler of NKI 0.x chose where a kernel does not name one.

Copies, and products and sums of a tile with numbers or with one number a partition, are what Scalar
computes in one instruction, `scale · x + bias`; they left Vector to what it alone can. This is seen
in the profiles of NKIBench on Trn1 (AccelOpt): batched products and plain ones, of which only
copies leave PSUM, keep Vector busy for 0.0 % of the time, AdamW keeps Scalar busy for 62 %.

Early generations' Vector reads two tiles of SBUF in turn, and one of PSUM beside one of SBUF at
once. So what Scalar writes for the next instruction alone lies in PSUM, if that is a pair of
Vector's and it fits into a bank: of AdamW's 14 temporaries the profile counts three there.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Container

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain.balance import as_activation, needs_column
from neuronjax.lower.write.rebuild import BufferMap
from neuronjax.machine.chips import CHIPS
from neuronjax.nki.tile_size import TileSize
from neuronjax.nki.tracing import Trace
from neuronjax.program.operand import Access, Buffer, Immediate, Kind, Memory, whole
from neuronjax.program.scalar_engine import Activate
from neuronjax.program.vector_engine import Memset, TensorCopy, TensorScalar, TensorTensor

_ROWS = 128


def choose(trace: Trace, named: Container[int]) -> None:
    """Gives Scalar what it computes as well as Vector, but for the instructions whose engine the
    kernel has `named`, by their places in the trace."""
    core = CHIPS[trace.chip].core
    biases: dict[str, Memset] = {}
    for place, instruction in enumerate(trace.instructions):
        if place in named or not isinstance(instruction, TensorCopy | TensorScalar):
            continue
        other = as_activation(instruction, core, least=2)
        if other is None:
            continue
        if needs_column(other, core):
            column = _bias(trace, other.with_part(instruction.part), biases)
            other = dataclasses.replace(other, bias=column)
        trace.instructions[place] = other.with_part(instruction.part)
    if biases:
        _put_first(trace, biases.values())
    if not core.reads_pairs:
        _pass_on_through_psum(trace)


def _pass_on_through_psum(trace: Trace) -> None:
    """Puts what Scalar hands on to the pair of Vector behind it into PSUM."""
    uses = Counter(
        access.buffer.name
        for instruction in trace.instructions
        for access in instruction.accesses()
    )
    in_psum: dict[str, Buffer] = {}
    for first, then in itertools.pairwise(trace.instructions):
        if not (isinstance(first, Activate) and isinstance(then, TensorTensor)):
            continue
        read = [access for access in (then.data1, then.data2) if access.buffer is first.dst.buffer]
        tile = first.dst.buffer
        if (
            uses[tile.name] != 2
            or len(read) != 1
            or tile.slot_bytes > TileSize.psum_bank_fmax_bytes
        ):
            continue
        if any(access.memory is not Memory.SBUF for access in (then.data1, then.data2)):
            continue
        in_psum[tile.name] = dataclasses.replace(tile, memory=Memory.PSUM)
    names = BufferMap(in_psum)
    trace.buffers[:] = map(names.buffer, trace.buffers)
    trace.instructions[:] = map(names.instruction, trace.instructions)


def _bias(trace: Trace, activation: Activate, known: dict[str, Memset]) -> Access:
    """A column of the number that an activation adds, which early generations read from memory."""
    number = activation.bias
    assert isinstance(number, Immediate)
    key = repr(number)
    if key not in known:
        column = trace.buffer(Memory.SBUF, FLOAT32, (_ROWS, 1), Kind.SCRATCH, label="bias")
        trace.declared[column.name] = trace.lines[activation.part]
        written = Memset(dst=whole(column), value=number)
        known[key] = written.with_part(activation.part)
    return dataclasses.replace(known[key].dst, partitions=activation.dst.partitions)


def _put_first(trace: Trace, columns: Collection[Memset]) -> None:
    """Writes tiles that were made last before all else."""
    count = len(columns)
    trace.instructions[:0] = columns
    trace.buffers[:] = [*trace.buffers[-count:], *trace.buffers[:-count]]
    for loop in trace.loops:
        loop.move(
            lambda mark: dataclasses.replace(
                mark, instructions=mark.instructions + count, buffers=mark.buffers + count
            )
        )
