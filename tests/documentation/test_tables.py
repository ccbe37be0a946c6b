"""The tables of the documentation say what the code says."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from neuronjax.cli.main import COMMANDS
from neuronjax.faults import FAULTS
from neuronjax.legalize.numerics import DEVIATIONS
from neuronjax.options import Options
from tests.documentation.tables import DOCS, TABLES, option_rows, renewed


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_current(name: str) -> None:
    file, table = TABLES[name]
    page = (DOCS / file).read_text()
    assert renewed(page, name, table()) == page, "run python -m tests.documentation.tables"


def test_every_option_has_a_variable_and_a_meaning() -> None:
    rows = list(option_rows())
    assert len(rows) == len(fields(Options))
    assert [row for row in rows if not row[0] or not row[3]] == []


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    """Every fault with its fields and their defaults."""
    fault = FAULTS[name]()
    values = {field.name: getattr(fault, field.name) for field in fields(fault)}
    written = " ".join(
        f"{field}={int(value) if isinstance(value, bool) else value}"
        for field, value in values.items()
    )
    assert f"| `{name}` | `{written}` |" in (DOCS / "faults.md").read_text()


def test_deviations() -> None:
    text = (DOCS / "numerics.md").read_text()
    for deviation in DEVIATIONS:
        control = f"`{deviation.control}`" if deviation.control else "always"
        assert f"| {deviation.name} | {deviation.what} | {control} |" in text


PAGES = sorted([*DOCS.glob("*.md"), DOCS.parent / "README.md"])


MADE_PAGES = {f"commands/{name}.md" for name in ("index", *COMMANDS)}
"""Pages that are made when the site is built."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_pages(page: Path) -> None:
    links = set(re.findall(r"\]\(([^)#:]+\.md)\)", page.read_text()))
    assert [link for link in links - MADE_PAGES if not (page.parent / link).is_file()] == []
