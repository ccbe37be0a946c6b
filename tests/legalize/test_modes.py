"""What option ``legality`` does about findings."""

from __future__ import annotations

import logging
import warnings

import jax.numpy as jnp
import pytest
from jax import lax

from neuronjax.errors import LegalityError
from neuronjax.hlo import module as hlo
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.report import LegalityWarning, check
from tests.legalize import programs
from tests.legalize.finding import bytecode
from tests.legalize.programs import CASES, Case


@pytest.fixture
def branching() -> bytes:
    return bytecode(Case("", "", programs.cond))


def apply(code: bytes, mode: str) -> None:
    with hlo.context():
        check(hlo.load(code), Policy(legality=mode))


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


def test_warn_says_each_rule_once() -> None:
    def often(x):
        return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x) + lax.reduce_precision(
            lax.cond(x[0, 1] > 0, jnp.tan, jnp.exp, x), 5, 2
        )

    with pytest.warns(LegalityWarning) as warned:
        apply(bytecode(Case("", "", often)), "warn")
    assert len(warned) == 2


def test_notes_do_not_warn() -> None:
    code = bytecode(Case("", "", programs.integer_dot, (programs.NUMBERS,)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply(code, "warn")


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
