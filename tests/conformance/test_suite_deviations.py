"""What a lost test is due to, on tests whose reason is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance import suite_deviations, suite_settings
from tests.conformance.suite_deviations import CHANGES
from tests.conformance.suite_runner import Run, Unit

TESTS = """
import jax, jax.numpy as jnp, numpy as np, os

def test_platform():
    assert jax.default_backend() == "cpu"

def test_integer_dot():
    x = np.full((1, 1), 2**12 + 1, np.int32)
    assert int(jnp.dot(x, x)[0, 0]) == (2**12 + 1) ** 2

def test_legality():
    assert os.environ.get("NEURONJAX_LEGALITY") == "off"

def test_several_deviations():
    assert os.environ.get("NEURONJAX_NUMERICS") == "ieee"
"""
REASONS = {
    "test_platform": "platform",
    "test_integer_dot": "integer_dot",
    "test_legality": "legality",
    "test_several_deviations": "several deviations",
}


@pytest.mark.slow
def test_reasons(tmp_path: Path) -> None:
    (tmp_path / "some_test.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    unit = Unit("some_test.py", tmp_path, tmp_path / "pytest.ini", ("some_test.py",), tmp_path)
    run = Run(suite_settings.environment(os.environ, "default", 1), tmp_path / "records")
    tried = [each for each in CHANGES if each.reason in REASONS.values()]
    assert len(tried) == 2
    lost = {"some_test": [f"some_test.py::{name}" for name in REASONS]}
    pairs = suite_deviations.reasons(run, {"some_test": unit}, lost, tmp_path / "again", tried)
    assert {identity.split("::")[1]: reason for identity, reason in pairs} == REASONS
