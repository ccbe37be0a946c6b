"""Two outcomes of one program: equal, or as close as what is known of the values allows."""

from __future__ import annotations

import re

import numpy as np

from tests.conformance.random_programs.facts import Facts
from tests.conformance.random_programs.program import RandomProgram
from tests.conformance.random_programs.workers import Outcome


def difference(program: RandomProgram, got: Outcome, want: Outcome, bits: bool = False) -> str:
    """What is wrong with `got`; empty if nothing is. With `bits`, all of them must be the same.

    Programs that fail in both are no finding: they are refused alike.
    """
    if isinstance(want, str):
        if died(want):
            return f"host: {want}"
        return got if isinstance(got, str) and died(got) else ""
    if isinstance(got, str):
        return got
    for name, one, other in zip(program.results, got, want, strict=True):
        error = _elements(one, other, _SAME if bits else program.values[name].facts)
        if error:
            return f"{name}: {error}"
    return ""


_SAME = Facts(0, 0)


def manner(error: str) -> str:
    """The sort of a finding, without names and numbers."""
    if not error:
        return ""
    text = error.strip().splitlines()[0]
    if re.match(r"v\d+: ", text):
        return "values"
    return re.sub(r"-?\d+", "#", re.sub(r"'[^']*'|%\w+", "…", text))[:120]


def died(outcome: Outcome) -> bool:
    """Whether the process ended, or did not answer."""
    return isinstance(outcome, str) and outcome.startswith(("Crash", "Hang"))


def _elements(got: np.ndarray, want: np.ndarray, facts: Facts) -> str:
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if facts.absolute == np.inf:
        return ""
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        allowed = facts.absolute + facts.relative * np.abs(b)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)
    if facts.exact and not facts.any_zero:
        same &= (np.signbit(a) == np.signbit(b)) | np.isnan(a)
    if same.all():
        return ""
    at = np.flatnonzero(~same)[:3]
    return (
        f"{got.flat[at].tolist()} instead of {want.flat[at].tolist()} in {np.sum(~same)} of "
        f"{same.size} elements of {got.dtype}{list(got.shape)}, allowed {facts.relative:.1e} of "
        f"it and {facts.absolute:.1e}"
    )
