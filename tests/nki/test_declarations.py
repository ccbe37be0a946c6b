"""Type checkers know the functions of `nki.isa` and `nki.language` as the tables have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nki.declarations import TEXTS


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_declarations_are_current(path: Path) -> None:
    assert path.read_text() == TEXTS[path](), "run python -m tests.nki.declarations"
