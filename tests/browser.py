"""The browser that pages are looked at in."""

from __future__ import annotations

import shutil

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


def needs_browser(page: str) -> pytest.MarkDecorator:
    """The mark of tests of a page, such as "the chat page"."""
    return pytest.mark.skipif(
        not BROWSER, reason=f"NOT TESTED: {page}, for want of chromium (apt install chromium)"
    )
