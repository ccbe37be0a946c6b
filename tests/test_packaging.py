"""What the package and a checkout say they need."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

import pytest

from neuronjax import __version__
from neuronjax.jaxlib_api.versions import TESTED
from tests.conftest import PROJECT

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
URL = PYPROJECT["project"]["urls"]["Homepage"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]
PAGES = [
    *(page for folder in ("docs", "neuronjax", "launch") for page in (PROJECT / folder).rglob("*")),
    *PROJECT.glob("*.md"),
]


def _limits() -> dict[str, str]:
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    return dict(line.split("<=") for line in lines if not line.startswith("#"))


def test_the_version_is_one() -> None:
    assert PYPROJECT["project"]["version"] == __version__
    assert f"\nversion: {__version__}\n" in (PROJECT / "CITATION.cff").read_text()
    assert f"\n## {__version__.removesuffix('.dev0')}, " in (PROJECT / "CHANGELOG.md").read_text()


def test_constraints_have_the_tested_version_of_what_breaks() -> None:
    limits = _limits()
    assert limits["jax"] == limits["jaxlib"] == TESTED[1]
    assert limits.keys() >= {"flax", "optax", "orbax-checkpoint", "grain"}


@pytest.mark.parametrize(
    ("told", "named"), [(r"neuronjax\[(\w+)\]'", EXTRAS), (r"--group (\w+)", GROUPS)]
)
def test_what_users_are_told_to_install_exists(told: str, named: Mapping[str, object]) -> None:
    texts = (page.read_text() for page in PAGES if page.suffix in (".md", ".py"))
    names = {name for text in texts for name in re.findall(told, text)}
    assert names
    assert names <= named.keys()


def test_the_readme_is_readable_on_an_index() -> None:
    """Pictures and links have whole addresses, of files that are there."""
    text = (PROJECT / "README.md").read_text()
    addresses = re.findall(r"\]\((\S+)\)", text)
    raw = URL.replace("github.com", "raw.githubusercontent.com")
    for address in addresses:
        path = re.sub(rf"^({URL}/blob|{raw})/main/", "", address)
        assert path != address, f"{address} is not a whole address"
        assert (PROJECT / path).is_file(), address
    assert any(address.startswith(raw) for address in addresses)
