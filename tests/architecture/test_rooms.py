"""Who may import whom, who may touch the outside, and that no file names somebody's machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT

BACKEND = sorted((PROJECT / "neuronjax").rglob("*.py"))
TEXTS = sorted(
    path
    for pattern in ("*.py", "*.md", "*.toml", "*.txt", "*.json", "*.yml", "Makefile", ".ci/*")
    for folder in (
        PROJECT,
        *(PROJECT / name for name in ("neuronjax", "models", "launch", "tests")),
    )
    for path in (folder.glob(pattern) if folder == PROJECT else folder.rglob(pattern))
    if path.is_file()
)
MACHINE_PATH = re.compile(r"(?<![\w.}/:~-])/(?:work|tmp|root|home|opt|mnt|srv|Users)/\w")


def test_import_contracts() -> None:
    """The contracts of pyproject.toml."""
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    config = str(PROJECT / "pyproject.toml")
    done = subprocess.run(
        [sys.executable, "-c", lint, "--config", config, "--no-cache"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def names(path: Path) -> Iterator[str]:
    """Modules that a file imports, and the dotted attributes it uses."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def users(*forbidden: str) -> set[tuple[str, str]]:
    """Files of the backend that use one of these modules or attributes, or parts of one, with the
    names they use. Only files that spell the last word of one are parsed."""
    return {
        (path.relative_to(PROJECT / "neuronjax").as_posix(), name)
        for path in BACKEND
        if any(word.split(".")[-1] in path.read_text() for word in forbidden)
        for name in names(path)
        if any(name == word or name.startswith(f"{word}.") for word in forbidden)
    }


@pytest.mark.parametrize(
    ("forbidden", "rooms"),
    [
        pytest.param(("jaxlib", "jax._src"), ("jaxlib_api/",), id="private names"),
        pytest.param(
            ("ctypes", "mmap"), ("pjrt/", "nki/endless.py", "nki/gym/sandbox.py"), id="addresses"
        ),
        pytest.param(
            ("os.environ", "os.getenv", "os.environb", "os.putenv"), ("options.py",), id="variables"
        ),
    ],
)
def test_only_these_rooms_touch(forbidden: tuple[str, ...], rooms: tuple[str, ...]) -> None:
    found = users(*forbidden)
    assert found, f"nothing uses {forbidden}: the rule is out of date"
    assert {user for user in found if not user[0].startswith(rooms)} == set()


def test_files_import_the_project_at_their_top() -> None:
    """An import of the project inside a function hides a dependency."""
    hidden = [
        f"{path.relative_to(PROJECT)}:{node.lineno}"
        for path in BACKEND
        if re.search(r"^[ \t]+from neuronjax", path.read_text(), re.MULTILINE)
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("neuronjax")
    ]
    assert hidden == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    found = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()}"
        for path in TEXTS
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert len(TEXTS) > 50
    assert found == []
