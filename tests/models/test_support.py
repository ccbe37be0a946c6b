"""Every architecture is compared with a reference."""

import json
from pathlib import Path

import models
from models.registry import ARCHITECTURES, MODULES
from tests.models.parity.cases import CASES
from tests.models.parity.families import RESULTS, families


def test_every_architecture_is_compared_and_every_case_is_an_architecture() -> None:
    assert {case.architecture for case in CASES} == set(ARCHITECTURES)


def test_the_registry_lists_every_module_of_families_and_every_name_once() -> None:
    root = Path(models.__path__[0])
    files = {path.relative_to(root.parent).with_suffix("") for path in root.glob("*/*families.py")}
    assert {".".join(path.parts) for path in files} == set(MODULES)
    assert len(ARCHITECTURES) == len(set(ARCHITECTURES))


def test_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_random_configs_of_every_family_gave_the_outputs_of_its_reference() -> None:
    rows = json.loads(RESULTS.read_text())
    assert set(families()) <= set(rows)
    assert all(row["equal"] >= 20 and not row["different"] for row in rows.values())
