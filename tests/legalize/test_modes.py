"""What option ``legality`` does about findings."""

from __future__ import annotations

import logging
import warnings

import jax.numpy as jnp
import pytest
from jax import lax

from neuronjax.errors import LegalityError, LegalityWarning, shown_line
from neuronjax.hlo import module as hlo
from neuronjax.legalize import report
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.report import Reporter
from neuronjax.legalize.rules.rule import Rule, Site
from tests.legalize import programs
from tests.legalize.finding import bytecode
from tests.legalize.programs import CASES, Case


@pytest.fixture
def branching() -> bytes:
    return bytecode(Case("", "", programs.cond))


def apply(codes: bytes | list[bytes], mode: str) -> None:
    reporter = Reporter()
    with hlo.context():
        for code in [codes] if isinstance(codes, bytes) else codes:
            reporter.check(hlo.load(code), Policy(legality=mode))


def test_off_looks_for_nothing(branching: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "neuronjax.legality"):
        apply(branching, "off")
    assert caplog.records == []


def test_log_records_findings_alone(branching: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "neuronjax.legality"):
        apply(branching, "log")
    program, record = caplog.records
    assert (program.levelno, program.program) == (logging.DEBUG, "jit_cond")
    assert record.levelno == logging.ERROR
    assert record.finding.rule.what == "lax.cond and lax.switch"
    assert str(record.finding) == record.getMessage()


def test_warn_points_at_the_users_line(branching: bytes) -> None:
    (case,) = (case for case in CASES if case.program is programs.cond)
    with pytest.warns(LegalityWarning, match=r"^\[NCC_EVRF001\] .*cond") as warned:
        apply(branching, "warn")
    (warning,) = warned
    assert (warning.filename, warning.lineno) == (case.file, case.line)


def test_a_program_has_one_warning_with_each_rule_and_its_lines() -> None:
    def often(x):
        first = lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)
        return first + lax.reduce_precision(lax.cond(x[0, 1] > 0, jnp.tan, jnp.exp, x), 5, 2)

    def again(x):
        return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)

    line = often.__code__.co_firstlineno
    programs = [bytecode(Case("", "", function)) for function in (often, often, again)]
    with pytest.warns(LegalityWarning) as told:
        apply(programs, "warn")
    first, second = (str(warning.message) for warning in told)
    heading, *rules, silence = first.splitlines()
    assert heading == "the Neuron compiler has 2 objections to this program:"
    assert len(rules) == 2
    assert f"{__file__}:{line + 1}, {line + 2}). Compute both" in rules[0].replace(
        shown_line(__file__), __file__
    )
    assert "neuronjax lint lists every line" in silence
    assert "again (lax.cond and lax.switch; at " in second
    assert "Compute both" not in second


def test_notes_do_not_warn() -> None:
    code = bytecode(Case("", "", programs.integer_dot, (programs.NUMBERS,)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply(code, "warn")


def test_a_warning_that_a_filter_makes_an_error_is_logged_as_a_warning(
    branching: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply(branching, "warn")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "lax.cond" in record.getMessage()


def test_strict_lists_every_error() -> None:
    def twice(x):
        return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x) + lax.reduce_precision(x, 5, 2)

    with pytest.raises(LegalityError) as raised:
        apply(bytecode(Case("", "", twice)), "strict")
    heading, *lines = str(raised.value).splitlines()
    assert heading == "the program would not compile for trainium2 with Neuron SDK 2.32:"
    assert [line.split(";")[0].rpartition("(")[2] for line in lines] == [
        "lax.cond and lax.switch",
        "reduce_precision",
    ]


# Our own defects


def broken(what: str) -> Rule:
    """A rule about every sine that fails wherever it looks."""

    def check(site: Site) -> str | None:
        return site.op.operands[7]

    return Rule(
        code="EVRF001",
        what=what,
        ops=frozenset({"stablehlo.sine"}),
        check=check,
        message="",
        remedy="",
        source="",
    )


@pytest.mark.parametrize("mode", ["log", "warn", "strict"])
def test_rules_that_fail_are_logged_once(
    mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report, "RULES", (broken("first"), broken("second")))
    reporter = Reporter()
    code = bytecode(Case("", "", lambda x: jnp.sin(jnp.sin(x))))
    for _ in range(2):
        with hlo.context():
            reporter.check(hlo.load(code), Policy(legality=mode))
    first, second = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert "the rule NCC_EVRF001 (first) failed at stablehlo.sine" in first.getMessage()
    assert "the rule NCC_EVRF001 (second) failed at stablehlo.sine" in second.getMessage()
    assert "IndexError" in caplog.text


def test_a_check_that_fails_as_a_whole_refuses_nothing(
    branching: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no graph")

    monkeypatch.setattr(report, "Program", fail)
    apply(branching, "strict")
    (record,) = caplog.records
    assert "the check of legality failed at program jit_cond" in record.getMessage()


def test_hooks_that_raise_fail_nothing(
    branching: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def show(*_: object, **__: object) -> None:
        raise RuntimeError("no terminal")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        apply(branching, "warn")
    (record,) = caplog.records
    assert record.getMessage().startswith("[NCC_EVRF001]")
