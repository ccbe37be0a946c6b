"""The range of versions is one fact, and what lies beyond it is met with a warning."""

import re
import warnings

import pytest

from neuronjax.errors import UntestedVersionWarning
from neuronjax.jaxlib_api import versions
from tests.conftest import PROJECT


def test_the_project_asks_for_the_oldest_version() -> None:
    asked = re.findall(r'"(jax|jaxlib)>=([\d.]+)"', (PROJECT / "pyproject.toml").read_text())
    assert asked == [("jax", versions.TESTED[0]), ("jaxlib", versions.TESTED[0])]


@pytest.mark.parametrize("installed", ["0.99.0", "1.0.0"])
def test_an_untested_minor_version_is_named(installed: str) -> None:
    with pytest.warns(UntestedVersionWarning, match=rf"this is {installed}") as caught:
        versions.warn_if_untested(installed)
    assert f"{versions.TESTED[0]} to {versions.TESTED[1]}" in str(caught[0].message)


@pytest.mark.parametrize("installed", versions.TESTED)
def test_tested_versions_are_silent(installed: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_if_untested(installed)
