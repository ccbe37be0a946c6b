"""Whatever the input, a parser answers with a value or with an error of the project, and soon."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from neuronjax.errors import NeuronError
from tests.parsers.limits import assert_within_limits
from tests.parsers.parsers import PARSERS


@pytest.mark.parametrize("name", PARSERS)
def test_any_input(name: str, tmp_path: Path) -> None:
    parser = PARSERS[name]

    def read(given: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unknown variables and flags
            with contextlib.suppress(NeuronError):
                parser.read(given, tmp_path)

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(parser.inputs)
    def answers(given: Any) -> None:
        assert_within_limits(lambda: read(given))

    answers()
