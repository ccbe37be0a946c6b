"""Kernels that begin while those before them run: in every order the same, or a race is reported.

What is dropped here, one at a time, is a wait across kernels: of a load of what the kernel before
stores, and of a tile that is filled again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from neuronjax.emulate import core
from neuronjax.emulate.checks import Checks, Finding
from neuronjax.emulate.core import DataflowOrder, run
from neuronjax.errors import OverwrittenError, RaceError, UninitialisedError
from neuronjax.lower.write.rebuild import rebuilt
from neuronjax.program.instruction import After, Instruction
from neuronjax.program.program import Node, Program
from neuronjax.program.text import format as format_program
from neuronjax.program.text import parse
from neuronjax.program.verify import verify
from neuronjax.program.walk import leaves

X = np.arange(64, dtype=np.float32)
ORDERS = [DataflowOrder(seed, adversarial=bool(seed % 2)) for seed in range(20)]


def kernel(source: str, result: str, at: int, *, load: str = "", rest: str = "") -> str:
    """A kernel that doubles 64 elements through a tile at an address."""
    waits = [f" after=({text})" if text else "" for text in (load, rest)]
    return f"""
  kernel "{result}" overlaps 1 {{
    semaphore !loaded
    semaphore !doubled
    sbuf %t{result} : float32[1, 64] @{at}
    dma_copy dst=%t{result}[0; 1:64] src=%{source}[0; 1:64] signals=(!loaded += 16){waits[0]}
    tensor_scalar dst=%t{result}[0; 1:64] data=%t{result}[0; 1:64] op0=multiply operand0=#2.0 \
waits=(!loaded >= 16) signals=(!doubled += 1){waits[1].replace(", @vector - 1", "")}
    dma_copy queue=1 dst=%{result}[0; 1:64] src=%t{result}[0; 1:64] engine=gpsimd \
waits=(!doubled >= 1){waits[1].replace("@gpsimd_queue1 - 1, ", "")}
  }}"""


def program(*kernels: str) -> Program:
    return parse(
        'program "p" target trainium2 lnc 1 {\n'
        "hbm %x : float32[64] argument @0\nhbm %y : float32[64] result @256\n"
        "hbm %z : float32[64] result @512\n" + "".join(kernels) + "\n}"
    )


APART = program(kernel("x", "y", 0), kernel("x", "z", 256))
STORED = program(
    kernel("x", "y", 0),
    kernel("y", "z", 256, load="@gpsimd_queue1 - 1"),
)
SAME_TILE = program(
    kernel("x", "y", 0),
    kernel(
        "x",
        "z",
        0,
        load="@gpsimd_queue1 - 1, @vector - 1",
        rest="@gpsimd_queue1 - 1, @sync_queue0 - 1, @vector - 1",
    ),
)
LOOP = parse(
    'program "p" target trainium2 lnc 1 {\n'
    "hbm %x : float32[64] argument @0\nhbm %y : float32[64] result @256\n"
    "hbm %z : float32[64] result @512\n"
    + kernel("x", "y", 0)
    + "\nloop i in 3 {"
    + kernel(
        "y",
        "z",
        256,
        load="@gpsimd_queue1 - 1, @vector - 1",
        rest="@gpsimd_queue1 - 1, @sync_queue0 - 1, @vector - 1",
    )
    + "\n}\n}"
)
PART = parse("""
program "p" target trainium2 lnc 1 {
  hbm %x : float32[64] argument @0
  hbm %y : float32[64] result @256
  hbm %z : float32[64] result @512
  kernel "y" overlaps 1 {
    semaphore !loaded
    semaphore !made
    sbuf %a : float32[1, 64] @0
    sbuf %b : float32[1, 64] @256
    dma_copy dst=%a[0; 1:64] src=%x[0; 1:64] signals=(!loaded += 16)
    tensor_scalar dst=%b[0; 1:64] data=%a[0; 1:64] op0=multiply operand0=#2.0 \
waits=(!loaded >= 16)
    tensor_scalar dst=%b[0; 1:64] data=%b[0; 1:64] op0=multiply operand0=#1.0 signals=(!made += 1)
    dma_copy queue=1 dst=%y[0; 1:64] src=%b[0; 1:64] engine=gpsimd waits=(!made >= 1)
  }
  kernel "z" overlaps 1 {
    semaphore !loaded
    semaphore !made
    sbuf %c : float32[1, 64] @0
    sbuf %d : float32[1, 64] @512
    dma_copy dst=%c[0; 1:64] src=%x[0; 1:64] signals=(!loaded += 16) after=(@vector - 1 but 1)
    tensor_scalar dst=%d[0; 1:64] data=%c[0; 1:64] op0=multiply operand0=#2.0 \
waits=(!loaded >= 16) signals=(!made += 1) after=(@sync_queue0 - 1)
    dma_copy queue=1 dst=%z[0; 1:64] src=%d[0; 1:64] engine=gpsimd waits=(!made >= 1)
  }
}""")
"""The second kernel fills the first one's tile once the first of two instructions is done."""
UNUSED = "\n".join(f"    sbuf %unused{number} : float32[1, 1] @4096" for number in range(253))
MANY_TILES = parse(format_program(PART).replace("sbuf %c", f"{UNUSED.strip()}\n    sbuf %c"))
"""The tile that is filled again comes 255 tiles after the one that it replaces."""
PROGRAMS = {
    "apart": APART,
    "stored": STORED,
    "same tile": SAME_TILE,
    "loop": LOOP,
    "part": PART,
    "many tiles": MANY_TILES,
}
RESULTS = dict.fromkeys(("apart", "same tile", "part", "many tiles"), (2 * X, 2 * X))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_order_gives_the_same(name: str) -> None:
    assert not verify(PROGRAMS[name])
    assert parse(format_program(PROGRAMS[name])) == PROGRAMS[name]
    y, z = RESULTS.get(name, (2 * X, 4 * X))
    for order in ORDERS:
        (results,) = run(PROGRAMS[name], [{"x": X}], order=order)
        assert results["y"].tolist() == y.tolist()
        assert results["z"].tolist() == z.tolist()


def test_loads_run_while_the_kernel_before_computes() -> None:
    """Kernels that overlap none are separated; of others, some order has the later one first."""

    def order_of(kernels: Program, order: DataflowOrder) -> tuple[str, ...]:
        paths: list[str] = []

        def observe(executed: core.Executed) -> None:
            paths.append(executed.path.split("/")[1])

        core.Emulation(kernels, [{"x": X}], order=order, observe=observe).run()
        return tuple(paths)

    closed = parse(format_program(APART).replace(" overlaps 1", ""))
    assert {order_of(closed, order) for order in ORDERS} == {("y", "y", "y", "z", "z", "z")}
    assert len({order_of(APART, order) for order in ORDERS}) > 2


def mutants() -> Iterator[tuple[str, Program]]:
    for name, whole in PROGRAMS.items():
        for position, leaf in enumerate(leaves(whole.body)):
            for after in leaf.after:
                yield (
                    f"{name}: {position % 3} without {after.stream}",
                    _changed(whole, position, after, ()),
                )
                less = dataclasses.replace(after, left=after.left + 1)
                yield (
                    f"{name}: {position % 3} with less of {after.stream}",
                    _changed(whole, position, after, (less,)),
                )


def _changed(whole: Program, position: int, old: After, new: tuple[After, ...]) -> Program:
    numbers = itertools.count()

    def change(node: Node) -> Node | None:
        if not isinstance(node, Instruction):
            return None
        if next(numbers) != position:
            return node
        kept = tuple(after for after in node.after if after != old)
        return dataclasses.replace(node, after=(*kept, *new))

    return dataclasses.replace(whole, body=rebuilt(whole.body, change))


MUTANTS = dict(mutants())


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wait_across_kernels_that_is_missing_is_found(name: str) -> None:
    assert "neighbours" in {finding.rule for finding in verify(MUTANTS[name])}


def is_reported(mutant: Program, order: DataflowOrder) -> bool:
    try:
        run(mutant, [{"x": X}], order=order)
    except (RaceError, UninitialisedError, OverwrittenError):
        return True
    return False


@pytest.mark.parametrize(
    "name",
    [name for name in MUTANTS if "0 without gpsimd" in name or "part: 1 with less" in name],
)
def test_an_order_shows_that_a_load_is_too_early(name: str) -> None:
    assert any(is_reported(MUTANTS[name], order) for order in ORDERS)


def test_a_register_of_a_kernel_that_still_runs_is_refused() -> None:
    text = format_program(APART).replace(
        "tensor_scalar dst=%tz", "register_move dst=$r src=$r\n tensor_scalar dst=%tz"
    )
    whole = parse(text.replace("lnc 1 {", "lnc 1 {\nregister $r limit 3\n", 1))
    assert "overlaps" in {finding.rule for finding in verify(whole)}


@pytest.mark.parametrize("order", [core.ProgramOrder(), *ORDERS[:4]])
def test_a_run_with_other_arguments_is_checked_again(order: core.Order) -> None:
    findings: list[Finding] = []
    text = format_program(PART).replace("dst=%a[0; 1:64]", "dst=%a[0; 1:63]")
    unwritten = parse(text.replace("src=%x[0; 1:64]", "src=%x[0; 1:63]", 1))
    emulation = core.Emulation(
        unwritten, [{"x": X}], order=order, checks=Checks(report=findings.append)
    )
    emulation.run()
    first = [finding.message for finding in findings]
    assert any("nothing has written" in message for message in first)
    emulation.reload([{"x": 2 * X}])
    emulation.run()
    assert [finding.message for finding in findings[len(first) :]] == first
