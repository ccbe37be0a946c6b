"""What a family of models costs: the lines of Python that exist for it alone.

python -m tests.models.family_cost

Counted are whole files, blank lines and docstrings included: those of the family's folder, those
elsewhere in `models` and `launch` that nothing but this family needs, and its rows in the registry.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from models.registry import ARCHITECTURES, MODULES
from tests.conftest import PROJECT

PACKAGES = ("models", "launch")


def modules() -> dict[str, Path]:
    """All modules of the packages by name."""
    files = (file for package in PACKAGES for file in (PROJECT / package).rglob("*.py"))
    return {_name(file): file for file in files}


def _name(file: Path) -> str:
    parts = file.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules among `known` that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from {name if name in known else node.module for name in names} & known.keys()
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known.keys()


def owners(known: Mapping[str, Path], families: set[str]) -> dict[str, str]:
    """Module -> the only family that needs it; a module that several or none need is left out."""
    users = defaultdict(set)
    for name, file in known.items():
        for other in imported(file, known):
            users[other].add(name)
    owned = {
        name: folder
        for name in known
        for folder in families
        if f"{name}.".startswith(f"models.{folder}.")
    }
    while found := {
        name: next(iter(of))
        for name, using in users.items()
        if name not in owned
        and len(of := {owned.get(user, "") for user in using}) == 1
        and of != {""}
    }:
        owned.update(found)
    return owned


def costs() -> dict[str, int]:
    """Family -> its lines."""
    known = modules()
    families = {architecture.family for architecture in ARCHITECTURES.values()}
    lines: Counter[str] = Counter()
    for name, family in owners(known, families).items():
        lines[family] += len(known[name].read_text().splitlines())
        lines[family] += MODULES.count(name)
    return dict(lines)


def report() -> None:
    """Prints a line for each family, cheapest first, then what the bars are about."""
    types = defaultdict(set)
    for architecture in ARCHITECTURES.values():
        types[architecture.family].add(architecture.model_type or architecture.name)
    lines = costs()
    by_type = {family: count / len(types[family]) for family, count in lines.items()}
    for family, count in sorted(lines.items(), key=lambda entry: entry[1]):
        print(
            f"{family:16} {count:5} lines, {by_type[family]:5.0f} for each of {len(types[family])}"
        )
    each_type = [by_type[family] for family in types for _ in types[family]]
    for what, counts in (("folder", [*lines.values()]), ("model type", each_type)):
        print(f"by {what}: smallest {min(counts):.0f}, median {median(counts):.0f}")


if __name__ == "__main__":
    report()
