"""Results in the place of operands: the same values in fewer tiles."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import HealthCheck, given, settings

from neuronjax.formats import FORMATS
from neuronjax.lower.memory.lifetimes import carried
from neuronjax.lower.schedule.in_place import in_place
from neuronjax.program.dma import DmaCopy
from neuronjax.program.operand import Access, Buffer, Immediate, Memory
from neuronjax.program.operators import AluOp
from neuronjax.program.program import Kernel, Loop, Node, Program
from neuronjax.program.vector_engine import TensorScalar
from tests.lower.nests import loops
from tests.lower.unrolled import results

FP32 = FORMATS["float32"]
COLUMNS = 8


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(loops("abcde", trips=(1, 3), most=8))
def test_random_loops_leave_the_same_in_hbm(program: Program) -> None:
    (kernel,) = program.body
    assert isinstance(kernel, Kernel)
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    lasting = carried(loop, kernel.buffers)
    free = {buffer.name: buffer for buffer in kernel.buffers if buffer not in lasting}
    body, left = in_place(loop.body, free)
    buffers = tuple(b for b in kernel.buffers if b in lasting or b.name in left)
    changed = dataclasses.replace(
        kernel, body=(dataclasses.replace(loop, body=body),), buffers=buffers
    )
    assert results(dataclasses.replace(program, body=(changed,))) == results(program)


def _tile(name: str, memory: Memory = Memory.SBUF, dtype: str = "float32") -> Buffer:
    return Buffer(name=name, memory=memory, dtype=FORMATS[dtype], shape=(2, COLUMNS))


def _whole(tile: Buffer) -> Access:
    return Access(buffer=tile, partitions=tile.partitions)


def _chain(*names: str, again: str | None = None, dtypes: tuple[str, ...] = ()) -> list[Node]:
    """What is loaded, doubled again and again, and stored; a tile may be stored once more."""
    types = dtypes or ("float32",) * len(names)
    known = [_tile(name, dtype=dtype) for name, dtype in zip(names, types, strict=True)]
    source, target, other = (_tile(name, Memory.HBM) for name in ("x", "y", "z"))
    nodes: list[Node] = [DmaCopy(dst=_whole(known[0]), src=_whole(source))]
    for old, new in itertools.pairwise(known):
        nodes.append(
            TensorScalar(
                dst=_whole(new), data=_whole(old), op0=AluOp.MULTIPLY, operand0=Immediate(2.0)
            )
        )
    nodes.append(DmaCopy(dst=_whole(target), src=_whole(known[-1])))
    if again is not None:
        nodes.append(DmaCopy(dst=_whole(other), src=_whole(known[names.index(again)])))
    return nodes


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        (_chain("a", "b", "c"), "a"),
        (_chain("a", "b", "c", again="a"), "ab"),
        (_chain("a", "b", "c", again="b"), "ac"),
        (_chain("a", "b", "c", dtypes=("float32", "float32", "bfloat16")), "ac"),
    ],
    ids=["chain", "the first is read later", "the second is read later", "another type"],
)
def test_a_chain_needs_one_tile_as_far_as_nobody_reads_it_later(
    nodes: list[Node], left: str
) -> None:
    accesses = (access for node in nodes for access in node.accesses())  # type: ignore[union-attr]
    own = {access.buffer.name: access.buffer for access in accesses if access.buffer.on_chip}
    _, kept = in_place(tuple(nodes), own)
    assert "".join(sorted(kept)) == left
