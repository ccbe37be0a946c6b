"""How tests of other projects are found and run, on a small project."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from tests.conformance import ecosystem_projects, suite_runner, suite_score, suite_settings
from tests.conformance.ecosystem_projects import PROJECTS, Project, Source

PYTEST = Project("pytest", Source.SDIST, {"whole": ("tests",)}, devices=2, left_out={"*/no_*": ""})
FILES = {
    "tests/conftest.py": "import jax\njax.config.update('jax_platform_name', 'cpu')\n",
    "tests/no_test.py": "assert False",
    "tests/some_test.py": """
import jax

def test_where():
    assert jax.default_backend() == jax.config.jax_platforms.split(',')[0]
    assert jax.device_count() == 2

def test_on_cpu_alone():
    assert jax.default_backend() == 'cpu'
""",
}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / f"pytest-{metadata.version('pytest')}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.slow
def test_a_project_on_both_platforms(sources: Path, tmp_path: Path) -> None:
    """Its own choice of platform does not keep its tests from `neuron`."""
    (unit,) = ecosystem_projects.units(PYTEST, sources)
    records = {}
    for setting in ("cpu", "default"):
        environment = suite_settings.environment(os.environ, setting, PYTEST.devices)
        run = suite_runner.Run(environment, tmp_path / setting)
        suite_runner.run_unit(run, unit)
        records[setting] = suite_score.read_records(tmp_path / setting)
    (score,) = suite_score.unit_scores(records["cpu"], records["default"], {}).values()
    assert score["reference"] == {"passed": 2}
    assert [loss["id"] for loss in score["lost"]] == ["tests/some_test.py::test_on_cpu_alone"]
    assert score["versions"] == [metadata.version("pytest")]


@pytest.mark.parametrize(
    ("project", "command"),
    [
        (PYTEST, "pip download --no-deps --no-binary=pytest"),
        (replace(PYTEST, source=Source.CHECKOUT, repository="url"), "git clone --depth=1"),
    ],
)
def test_missing_sources(project: Project, command: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=command):
        ecosystem_projects.units(project, tmp_path)


def test_tests_that_come_with_the_package(tmp_path: Path) -> None:
    (unit,) = ecosystem_projects.units(replace(PYTEST, source=Source.WHEEL), tmp_path)
    assert (unit.root / "pytest" / "__init__.py").is_file()


def test_names_of_units_differ() -> None:
    names = [name for project in PROJECTS for name in project.units]
    assert len(set(names)) == len(names)
