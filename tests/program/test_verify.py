"""Every rule with programs that keep it and programs that break it, and it alone."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given

from neuronjax.program.program import Program
from neuronjax.program.rules.engines import SINCE
from neuronjax.program.rules.shapes import LIMITS, SHAPES
from neuronjax.program.rules.types import FIELD_TYPES, OPERATORS, SAME
from neuronjax.program.table import INSTRUCTIONS
from neuronjax.program.text import parse
from neuronjax.program.verify import RULES, STRUCTURE, verify
from tests.program.limit_cases import LIMIT_CASES
from tests.program.rule_cases import CASES, Case
from tests.program.strategies import FEW, single

ALL = [*CASES, *LIMIT_CASES]
NUMBERED = [f"{case.rule} {index}" for index, case in enumerate(ALL)]


@pytest.mark.parametrize("case", ALL, ids=NUMBERED)
def test_good_programs_pass(case: Case) -> None:
    assert [str(finding) for finding in verify(parse(case.text(good=True)))] == []


@pytest.mark.parametrize("case", ALL, ids=NUMBERED)
def test_bad_programs_break_the_rule_alone(case: Case) -> None:
    findings = verify(parse(case.text(good=False)))
    assert {finding.rule for finding in findings} == {case.rule}, [*map(str, findings)]
    for finding in findings:
        assert all((finding.path, finding.actual, finding.allowed, finding.remedy))


def test_every_rule_has_cases() -> None:
    names = Counter(rule.name for rule in (*STRUCTURE, *RULES))
    assert set(names.values()) == {1}
    assert names.keys() == {case.rule for case in ALL}
    assert all(rule.source and rule.remedy for rule in (*STRUCTURE, *RULES))


# Instructions without a rule about their sizes: registers, semaphores, and what takes any tile.
ANY_SIZE = {
    "memset", "rng", "rand2", "core_barrier", "tensor_partition_reduce", "rank_id",
    "register_move", "register_alu", "semaphore_event", "host", "device_print",
}  # fmt: skip
ELSEWHERE = {
    "matmul shape": {"nc_matmul", "nc_matmul_mx"},
    "transposes": {"tensor_transpose", "vector_transpose"},
    "reductions": {"tensor_reduce"},
    "collectives": {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute",
        "collective_permute_implicit", "all_gather_v", "all_to_all_v",
    },
}  # fmt: skip


def test_every_instruction_has_a_rule_about_its_sizes() -> None:
    ruled = SHAPES.keys() | LIMITS.keys() | set().union(*ELSEWHERE.values())
    assert ruled | ANY_SIZE == INSTRUCTIONS.keys()
    assert not ruled & ANY_SIZE
    assert ELSEWHERE.keys() <= {rule.name for rule in RULES}


def test_every_limit_has_a_case() -> None:
    broken = " ".join(case.bad for case in LIMIT_CASES)
    assert {name for name in LIMITS if f"{name} " not in broken} == set()


@pytest.mark.parametrize("table", [SHAPES, LIMITS, SAME, SINCE, FIELD_TYPES, OPERATORS])
def test_tables_name_what_there_is(table: dict) -> None:
    for key in table:
        mnemonic, field = key if isinstance(key, tuple) else (key, "waits")
        assert field in {each.name for each in dataclasses.fields(INSTRUCTIONS[mnemonic])}
    named = {(name, field) for name, row in SHAPES.items() for field in (*row.alike, *row.vectors)}
    named |= {(name, field) for name, pair in SAME.items() for field in pair}
    for mnemonic, field in named:
        assert field in {each.name for each in dataclasses.fields(INSTRUCTIONS[mnemonic])}


@pytest.mark.parametrize("mnemonic", INSTRUCTIONS)
def test_any_program_gets_an_answer(mnemonic: str) -> None:
    """However strange the operands: findings, and no exception."""

    @FEW
    @given(single(INSTRUCTIONS[mnemonic]))
    def check(program: Program) -> None:
        for finding in verify(program):
            assert str(finding).startswith(f"{finding.path}: ")

    check()
