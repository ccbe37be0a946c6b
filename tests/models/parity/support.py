"""The table of supported models in README.md, made from the parity table.

python -m tests.models.parity.support    # renews the table
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from models.registry import ARCHITECTURES
from tests.models.parity.cases import CASES, Case

README = Path(__file__).parents[3] / "README.md"
BEGIN, END = "<!-- support table -->\n", "<!-- end of support table -->\n"


def table(cases: Iterable[Case] = CASES) -> str:
    """One line per architecture of the registry."""
    lines = ["| architecture | task | compared with transformers as |\n", "|---|---|---|\n"]
    for name, architecture in ARCHITECTURES.items():
        variants = [case.variant or "plain" for case in cases if case.architecture == name]
        lines.append(f"| {name} | {architecture.task} | {'; '.join(variants) or 'not yet'} |\n")
    return "".join(lines)


def with_table(text: str) -> str:
    """The README's text with the table of today."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"README.md lacks the lines {BEGIN!r} and {END!r}")
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
    sys.stdout.write(table())
