"""The prose of README, documentation and docstrings, read by proselint and for fragments (part of
`make lint`).

python -m tests.documentation.prose    # exit code 1 if it stumbles
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import PROJECT

PAGES = ("*.md", "docs/*.md", "docs/tutorials/*.md")
CODE = ("neuronjax", "launch", "models")

READ = (
    "annotations", "cliches", "corporate_speak", "hedging", "lexical_illusions", "malapropisms",
    "misc", "mixed_metaphors", "mondegreens", "needless_variants", "nonwords", "oxymorons",
    "redundancy", "spelling", "terms",
)  # fmt: skip
"""Checks of proselint. Typography is that of the sources, and industrial language the field's."""

_BLANKED = (
    re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL),  # code
    re.compile(r"^\|.*$", re.MULTILINE),  # tables
    re.compile(r"``.+?``|`[^`\n]*(?:\n[^`\n]+)?`"),
    re.compile(r"https?://\S+"),
    re.compile(r"^    .*$", re.MULTILINE),
)


def blanked(text: str) -> str:
    """The text with dashes in place of code, tables and addresses; lines stay."""
    for pattern in _BLANKED:
        text = pattern.sub(lambda match: re.sub(r"[^\n]", "-", match[0]), text)
    return text


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, and those of its attributes, each with its line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for each in node.body:
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                    value = each.value.value
                    if isinstance(value, str):
                        yield each.lineno, value


def in_place(text: str) -> str:
    """The docstrings of a module, each at its line."""
    lines = [""] * (text.count("\n") + 2)
    for start, value in docstrings(text):
        for number, line in enumerate(value.splitlines(), start - 1):
            lines[number] = line.strip()
    return "\n".join(lines)


_FRAGMENT = re.compile(
    r"(?:After|As|At|Before|Between|By|For|From|In|Of|On|Per|To|With|Without) [^,]*"
)
"""The first line of a docstring that hangs on the name of what it is about."""


def fragments() -> list[str]:
    """Docstrings that cannot be read alone, as ``path:line: fragment: docstring``."""
    return [
        f"{path.relative_to(PROJECT)}:{line}: fragment: {first}"
        for room in CODE
        for path in sorted((PROJECT / room).rglob("*.py"))
        for line, value in docstrings(path.read_text(encoding="utf-8"))
        if _FRAGMENT.fullmatch(first := value.strip().partition("\n")[0])
    ]


def sources() -> Iterator[tuple[Path, str]]:
    """What is read: path, relative to the project, and prose."""
    for pattern in PAGES:
        for path in sorted(PROJECT.glob(pattern)):
            yield path.relative_to(PROJECT), blanked(path.read_text(encoding="utf-8"))
    for room in CODE:
        for path in sorted((PROJECT / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            yield path.relative_to(PROJECT), blanked(in_place(text))


def stumbles() -> list[str]:
    """What proselint says, as ``path:line:column: check: message``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, prose in sources():
            copy = folder / "prose" / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.with_name(f"{path.name}.md").write_text(prose, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "proselint", "check", "prose"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode and not done.stdout.strip():
            raise RuntimeError(done.stderr)
        said = done.stdout.replace(f"{folder.resolve()}/prose/", "")
    return [
        said_of[1] + said_of[2]
        for line in said.splitlines()
        if (said_of := _SAID.fullmatch(line)) and said_of[3] in READ
    ]


_SAID = re.compile(r"(.+)\.md(:\d+:\d+: (\w+).*)")


if __name__ == "__main__":
    found = fragments() + stumbles()
    print("\n".join(found))
    sys.exit(1 if found else 0)
