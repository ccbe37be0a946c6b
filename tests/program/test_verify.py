"""Every rule with programs that keep it and programs that break it, and it alone."""

from __future__ import annotations

from collections import Counter

import pytest

from neuronjax.program.text import parse
from neuronjax.program.verify import RULES, STRUCTURE, verify
from tests.program.limit_cases import LIMIT_CASES
from tests.program.rule_cases import CASES, Case

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
        assert all((finding.path, finding.found, finding.allowed, finding.remedy))


def test_every_rule_has_cases() -> None:
    names = Counter(rule.name for rule in (*STRUCTURE, *RULES))
    assert set(names.values()) == {1}
    assert names.keys() == {case.rule for case in ALL}
    assert all(rule.source and rule.remedy for rule in (*STRUCTURE, *RULES))
