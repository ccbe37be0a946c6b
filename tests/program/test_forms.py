"""Checks of forms say of every instruction what the checks say of the instruction itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given

from neuronjax.program.program import Program
from neuronjax.program.rules.forms import Forms
from neuronjax.program.rules.site import InstructionCheck, Site
from neuronjax.program.table import INSTRUCTIONS
from neuronjax.program.text import parse
from neuronjax.program.verify import RULES
from neuronjax.program.walk import instructions
from tests.program.limit_cases import LIMIT_CASES
from tests.program.rule_cases import CASES, Case
from tests.program.strategies import FEW, single

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
CHECKS = [rule.check for rule in RULES if isinstance(rule.check, InstructionCheck)]
BY_INSTRUCTION = {rule.name for rule in RULES if isinstance(rule.check, InstructionCheck)}
BROKEN = [case for case in (*CASES, *LIMIT_CASES) if case.rule in BY_INSTRUCTION]


def broken_itself(program: Program) -> list[tuple[int, ...]]:
    """By instruction, the indices of the checks that it breaks."""
    return [
        tuple(
            index
            for index, check in enumerate(CHECKS)
            if list(check.at(Site(program, place, instruction)))
        )
        for place, instruction in instructions(program)
    ]


def broken_by_form(program: Program) -> list[tuple[int, ...]]:
    forms = Forms(program, CHECKS)
    return [forms.broken(place, instruction) for place, instruction in instructions(program)]


@pytest.mark.parametrize("is_good_first", [True, False])
@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.rule)
def test_forms_of_good_and_bad_instructions_differ(case: Case, is_good_first: bool) -> None:
    """Those before do not answer for those behind them."""
    bad, good = parse(case.text(good=False)), parse(case.text(good=True))
    first, second = (good, bad) if is_good_first else (bad, good)
    both = dataclasses.replace(bad, body=(*first.body, *second.body))
    broken = broken_itself(both)
    assert broken_by_form(both) == broken
    assert any(broken)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_forms_of_whole_programs(path: Path) -> None:
    program = parse(path.read_text())
    assert broken_by_form(program) == broken_itself(program)


@pytest.mark.parametrize("mnemonic", INSTRUCTIONS)
def test_forms_of_odd_instructions(mnemonic: str) -> None:
    @FEW
    @given(single(INSTRUCTIONS[mnemonic]), single(INSTRUCTIONS[mnemonic]))
    def check(first: Program, second: Program) -> None:
        both = dataclasses.replace(first, body=(*first.body, *second.body))
        assert broken_by_form(both) == broken_itself(both)

    check()
