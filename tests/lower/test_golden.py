"""Programs are those of the golden files; `python -m tests.lower.golden` writes them anew."""

from __future__ import annotations

import pytest

from neuronjax.program import text
from neuronjax.program.verify import verify
from tests.lower.golden import CASES, FOLDER, lowered


@pytest.mark.parametrize("name", CASES)
def test_program(name: str) -> None:
    found = lowered(name)
    assert found == (FOLDER / f"{name}.txt").read_text()
    program = text.parse(found)
    assert text.format(program) == found
    assert verify(program) == ()


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(CASES)
