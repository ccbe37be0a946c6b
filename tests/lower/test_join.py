"""Joined kernels: the same results, tensors that stay in SBUF, and layers that stay functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from neuronjax.emulate.core import run
from neuronjax.lower.join.join import join, segments
from neuronjax.lower.join.once import Walk, fill_once
from neuronjax.program.operand import Access, Memory
from neuronjax.program.program import Call, Kernel, Node, Program
from neuronjax.program.text import format, parse
from neuronjax.program.verify import verify
from tests.lower.unrolled import steps

CHAIN = """program "chain" target trainium2 lnc 1 {{
  hbm %x : float32[256, 64] argument
  hbm %y : float32[256, 64] result
  hbm %h : float32[256, 64]{kind}
  kernel "first" {{
    sbuf %t : float32[128, 64] slots 2
    loop i in 2 {{
      dma_copy dst=%t{{i}}<0, 128>[0; 1:64] src=%x[8192*i; 64:128, 1:64]
      dma_copy dst=%h[8192*i; 64:128, 1:64] src=%t{{i}}<0, 128>[0; 1:64]
    }}
  }}
  kernel "second" {{
    sbuf %t : float32[128, 64] slots 2
    loop i in 2 {{
      loop c in 2 {{
        dma_copy dst=%t{{c}}<0, {lanes}>[0; 1:{width}] src=%h[{read}]
        dma_copy dst=%y[{write}] src=%t{{c}}<0, {lanes}>[0; 1:{width}]
      }}
    }}
  }}
}}
"""


def chain(
    read: str = "8192*i + 32*c; 64:128, 1:32",
    write: str = "",
    lanes: int = 128,
    width: int = 32,
    kind: str = "",
) -> Program:
    filled = {"read": read, "write": write or read, "lanes": lanes, "width": width}
    return parse(CHAIN.format(kind=kind, **filled))


def cells(access: Access, values: dict[str, int]) -> list[tuple[object, ...]]:
    """Elements in the order in which a copy walks over them."""
    start = access.offset.at(values)  # type: ignore[union-attr]
    walk = [[dim.stride * step for step in range(dim.size)] for dim in access.dims]
    offsets = [start + sum(each) for each in itertools.product(*walk)]
    lane, slot = access.partition.at(values), access.slot.at(values) % access.buffer.slots
    lanes = range(lane, lane + access.partitions)
    return [(access.buffer.name, slot, each, at) for each in lanes for at in offsets]


def results(nodes: Sequence[Node]) -> dict[tuple[object, ...], object]:
    """Where each element of %y and %h comes from."""
    memory: dict[tuple[object, ...], object] = {}
    for kernel in nodes:
        assert isinstance(kernel, Kernel)
        for step in steps(kernel):
            copy = step.instruction
            sources = [memory.get(cell, cell) for cell in cells(copy.src, step.values)]  # type: ignore[attr-defined]
            memory.update(zip(cells(copy.dst, step.values), sources, strict=True))  # type: ignore[attr-defined]
    return {cell: value for cell, value in memory.items() if cell[0] in ("y", "h")}


def on_y(nodes: Sequence[Node]) -> dict[tuple[object, ...], object]:
    return {cell: value for cell, value in results(nodes).items() if cell[0] == "y"}


def loads_of(program: Program, name: str) -> int:
    (kernel,) = program.body
    assert isinstance(kernel, Kernel)
    copies = {id(step.instruction): step.instruction for step in steps(kernel)}
    return sum(each.src.buffer.name == name for each in copies.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"read": "8192*i + 4096*c; 64:64, 1:64", "lanes": 64, "width": 64},
        {"read": "8192*c + 32*i; 64:128, 1:32"},
    ],
    ids=["columns", "other partitions", "other order"],
)
def test_rows_on_partitions_never_leave_the_chip(given: dict[str, object]) -> None:
    before = chain(**given)  # type: ignore[arg-type]
    after = join(before)
    assert [buffer.name for buffer in after.buffers] == ["x", "y"]
    assert on_y(after.body) == on_y(before.body)
    assert len(on_y(after.body)) == 256 * 64
    assert [str(finding) for finding in verify(after)] == []
    assert parse(format(after)) == after


def test_what_others_read_is_stored_and_not_loaded() -> None:
    before = chain(kind=" result")
    after = join(before)
    assert results(after.body) == results(before.body)
    assert loads_of(after, "h") == 0


@pytest.mark.parametrize(
    "given",
    [
        {"read": "8192*i + 33*c; 64:128, 1:32", "write": "8192*i + 32*c; 64:128, 1:32"},
        {"read": "8192*i + 64*c; 1:64, 64:64", "lanes": 64, "width": 64},
    ],
    ids=["beyond a row", "columns on partitions"],
)
def test_other_tensors_stay_in_hbm(given: dict[str, object]) -> None:
    before = chain(**given)  # type: ignore[arg-type]
    after = join(before)
    assert "h" in [buffer.name for buffer in after.buffers]
    assert on_y(after.body) == on_y(before.body)


TWO_HALVES = """program "halves" target trainium2 lnc 1 {
  hbm %x : float32[256, 64] argument
  hbm %y : float32[128, 64] result
  hbm %z : float32[128, 64] result
  hbm %h : float32[256, 64] result
  kernel "first" {
    sbuf %t : float32[128, 64]
    sbuf %u : float32[128, 64]
    dma_copy dst=%t<0, 128>[0; 1:64] src=%x[0; 64:128, 1:64]
    dma_copy dst=%h[0; 64:128, 1:64] src=%t<0, 128>[0; 1:64]
    dma_copy dst=%u<0, 128>[0; 1:64] src=%x[8192; 64:128, 1:64]
    dma_copy dst=%h[8192; 64:128, 1:64] src=%u<0, 128>[0; 1:64]
    memset dst=%u<0, 128>[0; 1:64] value=#0.0
    dma_copy dst=%z[0; 64:128, 1:64] src=%u<0, 128>[0; 1:64]
  }
  kernel "second" {
    sbuf %a : float32[128, 64]
    sbuf %b : float32[128, 64]
    sbuf %c : float32[128, 64]
    dma_copy dst=%a<0, 128>[0; 1:64] src=%h[0; 64:128, 1:64]
    dma_copy dst=%b<0, 128>[0; 1:64] src=%h[8192; 64:128, 1:64]
    tensor_tensor dst=%c<0, 128>[0; 1:64] data1=%a<0, 128>[0; 1:64] data2=%b<0, 128>[0; 1:64] op=add
    dma_copy dst=%y[0; 64:128, 1:64] src=%c<0, 128>[0; 1:64]
  }
}
"""


def test_a_tensor_that_cannot_stay_leaves_everything_as_it_was() -> None:
    """One of the tiles stored is used again afterwards; both loads feed one instruction."""
    after = join(parse(TWO_HALVES))
    assert [str(finding) for finding in verify(after)] == []
    text = format(after)
    assert "_kept" not in text
    assert parse(text) == after


LAYERS = """program "layers" target trainium2 lnc 1 {{
{buffers}
  function @double(hbm %a : float32[128, 64], hbm %b : float32[128, 64]) {{
    kernel "double" {{
      sbuf %t : float32[128, 64]
      sbuf %u : float32[128, 64]
      dma_copy dst=%t<0, 128>[0; 1:64] src=%a[0; 64:128, 1:64]
      tensor_scalar dst=%u<0, 128>[0; 1:64] data=%t<0, 128>[0; 1:64] op0=multiply operand0=#2.0
      dma_copy dst=%b[0; 64:128, 1:64] src=%u<0, 128>[0; 1:64]
    }}
  }}
  function @half(hbm %a : float32[128, 64], hbm %b : float32[128, 64]) {{
    kernel "half" {{
      sbuf %t : float32[128, 64]
      sbuf %u : float32[128, 64]
      dma_copy dst=%t<0, 128>[0; 1:64] src=%a[0; 64:128, 1:64]
      tensor_scalar dst=%u<0, 128>[0; 1:64] data=%t<0, 128>[0; 1:64] op0=multiply operand0=#0.5
      dma_copy dst=%b[0; 64:128, 1:64] src=%u<0, 128>[0; 1:64]
    }}
  }}
{calls}
}}
"""


def test_layers_become_calls_of_one_function() -> None:
    names = [f"v{index}" for index in range(7)]
    kinds = ["argument", *[""] * 5, "result"]
    buffers = "\n".join(
        f"  hbm %{name} : float32[128, 64] {kind}" for name, kind in zip(names, kinds, strict=True)
    )
    calls = "\n".join(
        f"  call @{'half' if index % 2 else 'double'}(%{names[index]}, %{names[index + 1]})"
        for index in range(6)
    )
    after = join(parse(LAYERS.format(buffers=buffers, calls=calls)))
    assert [type(node) for node in after.body] == [Call] * 3
    (function,) = after.functions
    assert [node.function for node in after.body] == [function.name] * 3  # type: ignore[union-attr]
    assert [buffer.name for buffer in after.buffers] == ["v0", "v2", "v4", "v6"]
    (kernel,) = function.body
    assert isinstance(kernel, Kernel)
    assert [part.name for part in kernel.parts] == ["double", "half"]
    tiles = [step.instruction.part for step in steps(kernel)]
    assert tiles == [0, 0, 1, 1]
    assert all(buffer.memory is Memory.SBUF for buffer in kernel.buffers)
    assert [str(finding) for finding in verify(after)] == []


@pytest.mark.parametrize(
    ("keys", "lengths"),
    [
        ("", []),
        ("a", [1]),
        ("abc", [3]),
        ("xababab", [1, 2, 2, 2]),
        ("xabcabcabcy", [1, 3, 3, 3, 1]),
        ("abcdabcdefef", [4, 4, 2, 2]),
        ("aaaa", [2, 2]),
    ],
)
def test_what_comes_again_is_cut_at_the_same_places(keys: str, lengths: list[int]) -> None:
    found = segments([(key, 1) for key in keys], 300)
    assert [len(each) for each in found] == lengths
    assert [index for each in found for index in each] == list(range(len(keys)))


@pytest.mark.parametrize(
    ("walks", "elements", "expected"),
    [
        ([(0, ((1, 12),))], 12, True),
        ([(0, ((4, 3), (1, 2))), (2, ((4, 3), (1, 2)))], 12, True),
        ([(0, ((4, 3), (1, 2))), (1, ((4, 3), (1, 2)))], 12, False),
        ([(0, ((1, 8),)), (4, ((1, 4),))], 12, False),
        ([(0, ((1, 4), (4, 3)))], 12, True),
        ([(0, ((0, 2), (1, 6)))], 12, False),
        ([(11, ((-1, 12),))], 12, True),
        ([(-1, ((1, 12),))], 12, False),
    ],
)
def test_walks_that_fill_a_tensor_once(
    walks: list[tuple[int, tuple[tuple[int, int], ...]]], elements: int, expected: bool
) -> None:
    seen = [
        base + sum(at)
        for base, steps in walks
        for at in itertools.product(*[[stride * k for k in range(size)] for stride, size in steps])
    ]
    assert (sorted(seen) == list(range(elements))) == expected
    assert fill_once([Walk(*walk) for walk in walks], elements) == expected


PAIRS = """program "pairs" target trainium2 lnc 1 {
  hbm %x : float32[4, 16] argument
  hbm %y : float32[4, 8] result
  hbm %h : float32[4, 16]
  kernel "first" {
    sbuf %t : float32[4, 16]
    dma_copy dst=%t<0, 4>[0; 1:16] src=%x[0; 16:4, 1:16]
    dma_copy dst=%h[0; 16:4, 1:16] src=%t<0, 4>[0; 1:16]
  }
  kernel "second" {
    sbuf %t : float32[4, 16]
    sbuf %s : float32[4, 8]
    dma_copy dst=%t<0, 4>[0; 1:16] src=%h[15; 16:4, -1:16]
    tensor_reduce dst=%s<0, 4>[0; 1:8] op=add data=%t<0, 4>[0; 2:8, 1:2] axes=1
    dma_copy dst=%y[0; 8:4, 1:8] src=%s<0, 4>[0; 1:8]
  }
}
"""


def test_reductions_keep_the_dimensions_that_they_reduce() -> None:
    before = parse(PAIRS)
    assert verify(before) == ()
    assert verify(join(before)) == ()
    given = [{"x": np.arange(64, dtype=np.float32).reshape(4, 16)}]
    (want,), (got,) = run(before, given), run(join(before), given)
    np.testing.assert_array_equal(got["y"], want["y"])


TWICE = """program "twice" target trainium2 lnc 1 {
  hbm %x : float32[128] argument
  hbm %y : float32[128, 2] result
  hbm %a : float32[128]
  hbm %b : float32[128, 2]
  kernel "first" {
    sbuf %t : float32[128, 1]
    dma_copy dst=%t<0, 128>[0; 1:1] src=%x[0; 1:128]
    dma_copy dst=%a[0; 1:128] src=%t<0, 128>[0; 1:1]
  }
  kernel "left" {
    dma_copy dst=%b[0; 2:128] src=%a[0; 1:128]
  }
  kernel "right" {
    dma_copy dst=%b[1; 2:128] src=%a[0; 1:128]
  }
  kernel "last" {
    sbuf %t : float32[128, 2]
    dma_copy dst=%t<0, 128>[0; 1:2] src=%b[0; 2:128, 1:2]
    dma_copy dst=%y[0; 2:128, 1:2] src=%t<0, 128>[0; 1:2]
  }
}
"""


def test_a_tensor_that_is_stored_twice_side_by_side() -> None:
    before = parse(TWICE)
    after = join(before)
    assert [buffer.name for buffer in after.buffers] == ["x", "y"]
    assert on_y(after.body) == on_y(before.body)
    assert [str(finding) for finding in verify(after)] == []
