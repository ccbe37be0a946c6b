"""Numbers of the compiler stand where they belong: facts in machine, choices in `lower.tuning`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from neuronjax.lower.tuning import choices
from tests.conftest import PROJECT

LOWER = PROJECT / "neuronjax" / "lower"

ALLOWED = {
    # Facts of arithmetic and of published algorithms.
    "product/segments.py": {"_NEGLIGIBLE"},
    "rewrite/gelu.py": {"_TOLERANCE"},
    "rewrite/random.py": {
        "_ROTATIONS", "_PARITY", "_THREEFRY_GROUPS", "_MULTIPLIERS", "_KEY_STEPS", "_PHILOX_ROUNDS",
    },
    "sort/selection.py": {
        "_INFINITY", "_SMALL", "_UP", "_DOWN", "_SIGN_AND_EXPONENT", "_LAST", "_QUIET", "_EXPONENT",
        "_WITHOUT_LAST", "SETUP", "LONGEST",
    },
    "values/bounds.py": {"ORDINARY", "_UNDERFLOW"},
    # What follows from facts of the hardware.
    "chain/boxes.py": {"MAX_FREE_AXES"},
    # What the code beside it does or writes, counted.
    "cores/split.py": {"CORES"},
    "memory/allocate.py": {"_FOREVER", "_SHOWN"},
    "product/loading.py": {"_INT16"},
    "product/pair.py": {"_SUMS"},
    "schedule/arrange.py": {"_ALIGNMENT"},
    "schedule/clocks.py": {"_NEVER"},
    "sort/sort.py": {"_COPIES", "_INSTRUCTIONS", "_TILES"},
    "sync/streams.py": {"OUTSIDE", "UNKNOWN_TRIPS"},
    # Where exact searches end; what is not found then is taken to be unknown.
    "join/join.py": {"_LONGEST_PERIOD"},
    "join/once.py": {"_MOST_RUNS"},
    "memory/coverage.py": {"_MOST_INTERVALS"},
    "sync/knowledge.py": {"MOST_FACTS"},
    "sync/search.py": {"MOST_STEPS", "_MOST_CHOICES"},
}  # fmt: skip
"""File -> module constants that are numbers and no choices."""


def numbers(path: Path) -> Iterator[str]:
    """The names of the module constants that are numbers, or tuples of numbers."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name for target in targets for name in ast.walk(target)]
            if _is_number(node.value):
                yield from (name.id for name in names if isinstance(name, ast.Name))


def _is_number(value: ast.expr) -> bool:
    """Whether an expression has numbers, and besides them only what makes numbers of them."""
    kinds = ast.Constant | ast.UnaryOp | ast.BinOp | ast.Tuple | ast.List | ast.Name
    parts = [part for part in ast.walk(value) if isinstance(part, ast.expr)]
    constants = [part.value for part in parts if isinstance(part, ast.Constant)]
    is_plain = all(isinstance(part, kinds) for part in parts)
    return is_plain and any(
        isinstance(number, int | float) and not isinstance(number, bool) for number in constants
    )


def test_only_tuning_has_numbers_that_somebody_chose() -> None:
    found = {
        path.relative_to(LOWER).as_posix(): names
        for path in sorted(LOWER.rglob("*.py"))
        if (names := set(numbers(path)))
    }
    assert found == ALLOWED


def test_every_choice_is_asked_for_and_says_why() -> None:
    text = "\n".join(path.read_text() for path in LOWER.rglob("*.py") if path.name != "tuning.py")
    for choice in choices():
        assert f".{choice.name}" in text, choice.name
        assert all((choice.unit, choice.reason, choice.cases)), choice.name
