"""Every public name and every command has its place on the site."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

import neuronjax
from neuronjax import nki
from neuronjax.cli.main import COMMANDS, parser
from tests.conftest import PROJECT

REFERENCE = (PROJECT / "docs" / "api.md").read_text()
ENTRIES = set(re.findall(r"^\.\. auto\w+:: (\S+)$", REFERENCE, re.MULTILINE))


@pytest.mark.parametrize(
    "name",
    [
        *(f"neuronjax.{name}" for name in neuronjax.__all__ if name != "__version__"),
        *(f"neuronjax.nki.{name}" for name in nki.__all__),
    ],
)
def test_public_names_have_an_entry(name: str) -> None:
    assert name in ENTRIES


def _command_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", PROJECT / "docs" / "command_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def command_pages() -> ModuleType:
    return _command_pages()


@pytest.mark.parametrize("name", COMMANDS)
def test_command_pages_have_every_argument(name: str, command_pages: ModuleType) -> None:
    page = command_pages.pages()[name]
    assert page.startswith(f"# neuronjax {name}\n")
    helped = parser([name])._subparsers._group_actions[0].choices[name].format_help()
    options = set(re.findall(r"(?<![\w-])--\w[\w-]*", helped)) - {"--help"}
    assert [option for option in options if option not in page] == []
