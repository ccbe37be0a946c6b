"""The report page at three widths, light and dark, beside pictures that somebody has looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.browser import needs_browser
from tests.profiling import screenshots

MOST = 40.0
"""Of 255, in a block of 60 x 60 pixels of the page: other colours, and lines that break elsewhere,
are more."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("screenshots")
    screenshots.write_page(path)
    return path


@needs_browser("the report page")
@pytest.mark.parametrize("case", screenshots.CASES)
def test_the_page_looks_as_before(case: str, folder: Path) -> None:
    picture = screenshots.taken(folder, case)
    worst = screenshots.difference(picture, screenshots.reference(case))
    assert worst < MOST, (
        f"the {case} page differs by {worst:.0f} of 255 somewhere: look at {folder / case}.png; if "
        "it is as it should be, run `python -m tests.profiling.screenshots`"
    )


def test_differences_are_seen() -> None:
    """Other colours, and a page that begins ten pixels further down."""
    light, dark = (screenshots.reference(f"desktop-{scheme}") for scheme in ("light", "dark"))
    assert screenshots.difference(light, light) == 0
    assert screenshots.difference(light, dark) > MOST
    moved = Image.new("RGB", dark.size)
    moved.paste(dark, (0, 10))
    assert screenshots.difference(dark, moved) > MOST
