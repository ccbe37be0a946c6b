"""Variables, functions and fields are named after what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT

FILLERS = frozenset({"each", "found", "moved", "one", "thing", "together"})


def declared(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and names of the variables, arguments, functions, classes and fields of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name.lower()
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def fillers(path: Path) -> list[str]:
    """Names in a file that say nothing about what they hold."""
    return [
        f"{path.relative_to(PROJECT)}:{line}: {name}"
        for line, name in declared(ast.parse(path.read_text()))
        if name.strip("_") in FILLERS
    ]


FILES = sorted(
    path for room in ("neuronjax", "models", "launch") for path in (PROJECT / room).rglob("*.py")
)


def test_names_say_what_they_hold() -> None:
    assert len(FILES) > 500
    assert [name for path in FILES for name in fillers(path)] == []


@pytest.mark.parametrize(
    "code",
    [
        "for each in x: pass",
        "found = 1",
        "def _together(): pass",
        "[one for one in x]",
        "lambda one: 1",
        "self.moved = 1",
        "class C:\n    found: str",
    ],
)
def test_fillers_are_noticed(code: str) -> None:
    assert any(name.strip("_") in FILLERS for _, name in declared(ast.parse(code)))
