"""Cycles of waits, found from one process."""

from __future__ import annotations

import pytest

from neuronjax.processes.deadlock import Tag, Wait, find_cycle

CASES = {
    # waits (process, awaited, program), programs that process 0 has begun -> the path from it
    "each for the other": (["0 1 f", "1 0 g"], "f", ["0 1 f", "1 0 g"]),
    "in a ring": (["0 2 f", "2 1 f", "1 0 g"], "f", ["0 2 f", "2 1 f", "1 0 g"]),
    "one of two waits": (["0 1 f", "0 2 f", "2 0 g"], "f", ["0 2 f", "2 0 g"]),
    "a chain": (["0 1 f", "1 2 f"], "f", []),
    "of one program": (["0 1 f", "1 0 f"], "f", []),
    "for what this process will send": (["0 1 f", "1 0 g"], "fg", []),
    "the other is in the same program too": (["0 1 f", "1 0 g", "1 2 f"], "f", []),
    "of others": (["0 1 f", "1 2 f", "2 1 g"], "f", []),
    "nobody": ([], "f", []),
}


def wait_of(text: str) -> Wait:
    process, awaited, program = text.split()
    return Wait(int(process), int(awaited), Tag(program, 0, "all_reduce 0"))


@pytest.mark.parametrize("name", CASES)
def test_a_cycle_leads_back_to_who_looks(name: str) -> None:
    texts, begun, path = CASES[name]
    waits: dict[int, list[Wait]] = {}
    for wait in map(wait_of, texts):
        waits.setdefault(wait.process, []).append(wait)
    found = find_cycle(0, waits, {(program, 0) for program in begun})
    assert found == [*map(wait_of, path)]
