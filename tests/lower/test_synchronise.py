"""Semaphores: what conflicts is ordered, nothing hangs, and no wait is for nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings

from neuronjax.lower.sync.synchronise import synchronise
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Kernel, Loop, Node, Program
from neuronjax.program.rules.semaphores import deadlock, semaphores
from neuronjax.program.text import format, parse
from neuronjax.program.verify import verify
from neuronjax.program.walk import children, kernels
from tests.lower.nests import programs
from tests.lower.schedule import races, stuck

GOLDEN = sorted((Path(__file__).parents[1] / "program" / "golden").glob("*.txt"))
BY_NAME = {path.stem: path for path in GOLDEN}


def golden(name: str) -> Program:
    return parse(BY_NAME[name].read_text())


def found_races(program: Program) -> list[str]:
    return [
        f"{one.instruction.mnemonic} {one.values}, {two.instruction.mnemonic} {two.values}"
        for _, kernel in kernels(program)
        for one, two in races(kernel)
    ]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_programs_are_ordered_and_end(path: Path) -> None:
    found = synchronise(parse(path.read_text()))
    assert [str(finding) for finding in verify(found)] == []
    if "$" not in path.read_text():
        assert found_races(found) == []
        assert not any(stuck(kernel) for _, kernel in kernels(found))


def test_the_checker_sees_what_is_missing() -> None:
    """Hand-written semaphores pass, unless two queues that overtake each other share one."""
    assert found_races(golden("softmax")) == []
    assert all("dma_copy" in race for race in found_races(golden("matmul")))
    assert found_races(golden("matmul"))
    assert found_races(golden("rms_norm"))
    assert found_races(golden("embedding"))


def test_double_buffering_waits_for_the_iteration_before_the_last() -> None:
    """The counts of the hand-written product, with a semaphore for each queue."""
    text = format(synchronise(golden("matmul")))
    for wanted in (
        "waits=(!tensor >= k + 8*m + 4*n + -1)",
        "!sync_queue0 >= 16*k + 128*m + 64*n + 16",
        "!vector >= 2*m + n + -1)",
        "waits=(!scalar_queue2 >= 32*m + 16*n + -16, !tensor >= 8*m + 4*n + 4)",
    ):
        assert wanted in text


def test_synchronising_twice_changes_nothing() -> None:
    once = synchronise(golden("rms_norm"))
    assert synchronise(once) == once


@given(programs(addressed=False))
@settings(max_examples=100, deadline=None)
def test_kernels_of_tiles_are_ordered_and_end(program: Program) -> None:
    found = synchronise(program)
    (kernel,) = found.body
    assert isinstance(kernel, Kernel)
    assert stuck(kernel) == []
    assert races(kernel) == []
    assert [*semaphores(found), *deadlock(found)] == []


@pytest.mark.slow
@given(programs(addressed=True))
@settings(max_examples=100, deadline=None)
def test_kernels_of_tiles_over_each_other_are_ordered_and_end(program: Program) -> None:
    found = synchronise(program)
    (kernel,) = found.body
    assert isinstance(kernel, Kernel)
    assert stuck(kernel) == []
    assert races(kernel) == []
    assert [*semaphores(found), *deadlock(found)] == []


def without_one_wait(kernel: Kernel) -> list[Kernel]:
    """The kernel without each of its waits."""
    total = sum(len(node.waits) for node in leaves(kernel))
    return [_without(kernel, [index]) for index in range(total)]


def leaves(node: Node) -> list[Instruction]:
    if isinstance(node, Instruction):
        return [node]
    return [leaf for child in children(node) for leaf in leaves(child)]


def _without(node: Node, countdown: list[int]) -> Node:
    if isinstance(node, Instruction):
        waits = []
        for wait in node.waits:
            if countdown[0] != 0:
                waits.append(wait)
            countdown[0] -= 1
        return dataclasses.replace(node, waits=tuple(waits))
    body = tuple(_without(child, countdown) for child in children(node))
    return dataclasses.replace(node, body=body)


@pytest.mark.parametrize("name", ["matmul", "softmax", "rms_norm", "layer_norm", "all_reduce"])
def test_every_wait_is_needed(name: str) -> None:
    for _, kernel in kernels(synchronise(golden(name))):
        assert all(races(other) for other in without_one_wait(kernel))


DYNAMIC = """program "dynamic" target trainium2 lnc 1 {{
  register $n limit 7
  register $flag limit 1
  hbm %x : float32[128, 64] argument @0
  hbm %y : float32[128, 64] result @32768
  hbm %count : int32[1] argument @65536
  kernel "dynamic" operations ("while") sources ("user.py:3") {{
    sbuf %kept : float32[128, 64] @0
    sbuf %tile : float32[128, 64] slots 2 @256
    {body}
  }}
}}
"""
LOAD = "dma_copy dst=%kept<0, 128>[0; 1:64] src=%x[0; 64:128, 1:64]"
STORE = "dma_copy dst=%y[0; 64:128, 1:64] src=%kept<0, 128>[0; 1:64]"
COUNT = "register_load dst=$n src=%count[0; 1:1]"
FLAG = "register_move dst=$flag src=#1"
ROUND = """
  dma_copy dst=%tile{i}<0, 128>[0; 1:64] src=%x[0; 64:128, 1:64]
  tensor_copy dst=%kept<0, 128>[0; 1:64] src=%tile{i}<0, 128>[0; 1:64]
"""


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ([LOAD, STORE], ["kernel"]),
        ([COUNT, LOAD, "loop i in $n {", ROUND, "}", STORE], ["kernel"]),
        ([LOAD, "loop i in $n {", ROUND, "}", STORE, *(["loop i in $n {", ROUND, "}"] * 2), STORE],
         ["kernel"]),
        (["loop i in $n {", "loop j in 3 {", ROUND, "}", LOAD, "}", "loop k in 3 {", STORE, "}"],
         ["kernel"]),
        ([FLAG, "if $flag {", LOAD, "} else {", STORE, "}", STORE], ["kernel", "if", "kernel"]),
        (["while {", FLAG, "} do $flag {", LOAD, "}", STORE], ["while", "kernel"]),
        (["loop j in 3 {", LOAD, "loop i in $n {", ROUND, "}", STORE, "}"], ["loop"]),
    ],
)  # fmt: skip
def test_control_by_registers_comes_about_kernels(body: list[str], shape: list[str]) -> None:
    program = synchronise(parse(DYNAMIC.format(body="\n".join(body))))
    assert [type(node).__name__.lower() for node in program.body] == shape
    findings = [finding for finding in verify(program) if finding.rule != "registers"]
    assert [str(finding) for finding in findings] == []
    for _, kernel in kernels(program):
        assert (kernel.operations, kernel.sources) == (("while",), ("user.py:3",))
        for trips in (0, 1, 2, 5):
            plain = dataclasses.replace(kernel, body=with_trips(kernel.body, trips))
            assert races(plain) == []
            assert stuck(plain) == []


def with_trips(nodes: tuple[Node, ...], trips: int) -> tuple[Node, ...]:
    """The nodes with a number for what a register decides; without such loops, if it is 0."""
    return tuple(
        dataclasses.replace(node, body=with_trips(node.body, trips), trips=trips)
        if isinstance(node, Loop) and not isinstance(node.trips, int)
        else node
        for node in nodes
        if trips or not isinstance(node, Loop) or isinstance(node.trips, int)
    )


PARAMETERS = """program "calls" target trainium2 lnc 1 {{
  hbm %x : float32[64] argument @0
  hbm %y : float32[64] result @256
  function @copy(hbm %from : float32[64], hbm %to : float32[64]) {{
    kernel "copy" {{
      sbuf %tile : float32[1, 64] @0
      dma_copy dst=%tile<0, 1>[0; 1:64] src=%from[0; 1:64]
      dma_copy queue=1 dst=%to[0; 1:64] src=%x[0; 1:64]
    }}
  }}
  call @copy(%x, %y)
  call @copy({second}, %y)
}}
"""


@pytest.mark.parametrize(("second", "waits"), [("%x", 0), ("%y", 1)])
def test_parameters_of_functions_may_be_one_buffer(second: str, waits: int) -> None:
    program = synchronise(parse(PARAMETERS.format(second=second)))
    assert [str(finding) for finding in verify(program)] == []
    ((_, kernel),) = kernels(program)
    assert sum(len(node.waits) for node in leaves(kernel)) == waits
