"""The examples of the pages about PyTorch and Keras run."""

from __future__ import annotations

import pytest

from tests.conftest import RunPython
from tests.documentation.test_examples import OF_OTHERS, example_runs, examples_of

EXAMPLES = examples_of(OF_OTHERS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, run_python: RunPython) -> None:
    example_runs(EXAMPLES[name], run_python)
