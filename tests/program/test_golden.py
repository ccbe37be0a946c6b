"""Hand-written programs: their text is stable, and a chip could run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronjax.program.text import format, parse
from neuronjax.program.verify import verify

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_text_is_stable(path: Path) -> None:
    assert format(parse(path.read_text())) == path.read_text()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_programs_pass(path: Path) -> None:
    assert [str(finding) for finding in verify(parse(path.read_text()))] == []


def test_there_are_programs() -> None:
    assert len(GOLDEN) >= 10
