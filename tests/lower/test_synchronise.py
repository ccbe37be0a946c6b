"""Semaphores: what conflicts is ordered, nothing hangs, and no wait is for nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings

from neuronjax.lower.synchronise import synchronise
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Kernel, Node, Program
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
        f"{one.instruction.mnemonic} {dict(one.values)}, {two.instruction.mnemonic} {dict(two.values)}"
        for _, kernel in kernels(program)
        for one, two in races(kernel)
    ]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_programs_are_ordered_and_end(path: Path) -> None:
    found = synchronise(parse(path.read_text()))
    assert [str(finding) for finding in verify(found)] == []
    for _, kernel in kernels(found):
        if all("$" not in line for line in format(found).splitlines()):
            assert races(kernel) == []
            assert stuck(kernel) == []


@given(programs(addressed=False))
@settings(max_examples=150, deadline=None)
def test_kernels_of_tiles_are_ordered_and_end(program: Program) -> None:
    (kernel,) = synchronise(program).body
    assert isinstance(kernel, Kernel)
    assert stuck(kernel) == []
    assert races(kernel) == []


@given(programs(addressed=True))
@settings(max_examples=150, deadline=None)
def test_kernels_of_tiles_over_each_other_are_ordered_and_end(program: Program) -> None:
    (kernel,) = synchronise(program).body
    assert isinstance(kernel, Kernel)
    assert stuck(kernel) == []
    assert races(kernel) == []


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
