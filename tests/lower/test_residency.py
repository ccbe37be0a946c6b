"""Values that stay in SBUF: the same results, less traffic, and room for every kernel."""

from __future__ import annotations

import itertools

import pytest

from neuronjax.lower.account import account
from neuronjax.lower.allocate import allocate
from neuronjax.lower.residency import keep_in_sbuf
from neuronjax.program.operand import Access, Memory
from neuronjax.program.program import Kernel, Program
from neuronjax.program.text import parse
from neuronjax.program.verify import verify
from tests.lower.unrolled import steps

PROGRAM = """program "chain" target trainium2 lnc 1 {{
  hbm %x : float32[256, 64] argument
  hbm %y : float32[256, 64] result
  hbm %h : float32[256, 64]
  kernel "first" {{
    sbuf %t : float32[128, {size}] slots 2
    loop i in 2 {{
      dma_copy dst=%t{{i}}<0, 128>[0; 1:64] src=%x[8192*i; 64:128, 1:64]
      dma_copy dst=%h[8192*i; 64:128, 1:64] src=%t{{i}}<0, 128>[0; 1:64]
    }}
  }}
  kernel "second" {{
    sbuf %t : float32[64, 64] slots 2
    loop i in 2 {{
      loop j in 2 {{
        loop c in 2 {{
          dma_copy dst=%t{{j}}<0, 64>[0; 1:32] src=%h[{read}; 64:64, 1:32]
          dma_copy dst=%y[8192*i + 4096*j + 32*c; 64:64, 1:32] src=%t{{j}}<0, 64>[0; 1:32]
        }}
      }}
    }}
  }}
}}
"""
ROWS = "8192*i + 4096*j + 32*c"


def chain(size: int = 64, read: str = ROWS) -> Program:
    return parse(PROGRAM.format(size=size, read=read))


def cells(access: Access, values: dict[str, int]) -> list[tuple[object, ...]]:
    """Elements in the order in which a copy walks over them."""
    start = access.offset.at(values)  # type: ignore[union-attr]
    walk = [[dim.stride * step for step in range(dim.size)] for dim in access.dims]
    offsets = [start + sum(steps) for steps in itertools.product(*walk)]
    lane, slot = access.partition.at(values), access.slot.at(values) % access.buffer.slots
    lanes = range(lane, lane + access.partitions)
    return [(access.buffer.name, slot, each, at) for each in lanes for at in offsets]


def results(program: Program) -> dict[tuple[object, ...], object]:
    """Where each element of %y comes from."""
    memory: dict[tuple[object, ...], object] = {}
    for kernel in program.body:
        assert isinstance(kernel, Kernel)
        for step in steps(kernel):
            copy = step.instruction
            sources = [memory.get(cell, cell) for cell in cells(copy.src, step.values)]  # type: ignore[attr-defined]
            memory.update(zip(cells(copy.dst, step.values), sources, strict=True))  # type: ignore[attr-defined]
    return {cell: value for cell, value in memory.items() if cell[0] == "y"}


def in_sbuf(program: Program) -> list[str]:
    return [buffer.name for buffer in program.buffers if buffer.memory is Memory.SBUF]


def test_rows_on_partitions_stay_in_sbuf() -> None:
    before, after = chain(), keep_in_sbuf(chain())
    assert in_sbuf(after) == ["h"]
    assert results(after) == results(before)
    assert len(results(after)) == 256 * 64
    placed = allocate(after)
    assert [str(finding) for finding in verify(placed)] == []
    use = account(placed)
    assert use.sbuf_resident_bytes == 4 * 256 * 64
    assert use.spilled_bytes == 0
    assert account(allocate(before)).spilled_bytes == 4 * 256 * 64


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (chain(size=26600), "no room"),
        (chain(read="8192*i + 4096*j + 33*c"), "beyond a row"),
        (chain(read="8192*i + 4128*j"), "not from row to row"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_other_tensors_stay_in_hbm(program: Program, why: str) -> None:
    assert keep_in_sbuf(program) == program


def test_arguments_and_results_stay_in_hbm() -> None:
    text = PROGRAM.format(size=64, read=ROWS).replace(
        "%h : float32[256, 64]", "%h : float32[256, 64] result"
    )
    assert in_sbuf(keep_in_sbuf(parse(text))) == []
