"""Runs the tests of projects that stand on JAX on `cpu` and on `neuron`, and keeps score.

  python -m tests.conformance.ecosystem --sources=DIR
  python -m tests.conformance.ecosystem --sources=DIR --projects=flax,optax --sample=1/8
  python -m tests.conformance.ecosystem --write_scoreboard

The extra `ecosystem` installs the projects. They run on `neuron` as users get it, with as many
devices as on `cpu`.
Tests that do not come with the installed package are under DIR: unpacked source distributions
(NAME-VERSION) and checkouts (NAME); what is missing is said with the command that gets it, and
--fetch downloads source distributions from PyPI. Results are kept under --work_dir, and a later
call goes on where an earlier one stopped. The score is the share of what passes on `cpu`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from absl import app, flags

from tests.conformance import ecosystem_projects, suite_runner, suite_score, suite_settings
from tests.conformance.ecosystem_projects import PROJECTS, Project, Source
from tests.conformance.suite_runner import Run

_SOURCES = flags.DEFINE_string("sources", None, "Folder of unpacked sources and checkouts.")
_PROJECTS = flags.DEFINE_list("projects", [each.name for each in PROJECTS], "What to run.")
_SETTINGS = flags.DEFINE_list("settings", ["cpu", "default"], "Settings to run in.")
_SAMPLE = flags.DEFINE_string("sample", "1/1", "K/N: part K of N of the tests.")
_TIMEOUT = flags.DEFINE_float("timeout", 600.0, "Seconds one test may take.")
_CRASHES = flags.DEFINE_integer("crashes", 20, "Crashes after which a unit is given up.")
_WORK = flags.DEFINE_string("work_dir", "runs/ecosystem", "Folder of the records.")
_FETCH = flags.DEFINE_bool("fetch", False, "Download missing source distributions from PyPI.")
_SCORE = flags.DEFINE_bool("write_scoreboard", False, "Write scoreboard.json from the records.")

SCOREBOARD = Path(__file__).with_name("scoreboard.json")
_COLUMNS = ("passed", "failed", "skipped", "crashed", "timeout")


def _records(setting: str) -> Path:
    return Path(_WORK.value).resolve() / setting


def _run(project: Project, setting: str, sources: Path) -> Run:
    environment = suite_settings.environment(
        os.environ, setting, project.devices, project.host_devices
    )
    if project.imports_source:
        environment["PYTHONPATH"] = str(ecosystem_projects.root(project, sources))
    elif project.plugin:
        environment["PYTHONPATH"] = str(suite_runner.PROJECT)
    part, parts = _SAMPLE.value.split("/")
    return Run(
        environment=environment,
        records=_records(setting),
        timeout=_TIMEOUT.value,
        crashes=_CRASHES.value,
        sample=(int(part), int(parts)),
    )


def _run_project(project: Project, sources: Path) -> None:
    for unit in ecosystem_projects.units(project, sources):
        for setting in _SETTINGS.value:
            started = time.monotonic()
            counts = suite_runner.run_unit(_run(project, setting, sources), unit)
            numbers = "".join(f"{counts.get(column, 0):9d}" for column in _COLUMNS)
            seconds = time.monotonic() - started
            print(f"{unit.name:24s}{setting:8s}{numbers}{seconds:9.1f} s", flush=True)


def _fetch(project: Project, sources: Path) -> None:
    """Downloads and unpacks the source distribution of the installed version, if it is missing."""
    version = metadata.version(project.name)
    stem = f"{project.name.replace('-', '_')}-{version}"
    if (sources / stem).is_dir():
        return
    wanted = [f"--no-binary={project.name}", f"{project.name}=={version}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *wanted]
    sources.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, f"--dest={sources}"], check=True)
    with tarfile.open(sources / f"{stem}.tar.gz") as file:
        file.extractall(sources, filter="data")


def _run_all(chosen: Sequence[Project], sources: Path) -> bool:
    """Runs the projects; whether all of them had sources."""
    print(f"{'':32s}" + "".join(f"{column:>9s}" for column in _COLUMNS), flush=True)
    complete = True
    for project in chosen:
        try:
            if _FETCH.value and project.source is Source.SDIST:
                _fetch(project, sources)
            _run_project(project, sources)
        except (FileNotFoundError, metadata.PackageNotFoundError) as problem:
            print(f"{project.name}: {problem}", file=sys.stderr)
            complete = False
    return complete


def _scores() -> dict[str, dict[str, Any]]:
    """The score of each unit that could be run: one whose sources are incomplete says nothing."""
    reference = suite_score.read_records(_records("cpu"))
    tested = suite_score.read_records(_records("default"))
    units: dict[str, dict[str, Any]] = {}
    for project in PROJECTS:
        names = reference.keys() & tested.keys() & project.units.keys()
        units |= suite_score.unit_scores(
            {name: reference[name] for name in names},
            {name: tested[name] for name in names},
            {"devices": project.devices},
        )
    return {name: score for name, score in units.items() if score["passed_in_reference"]}


def main(arguments: Sequence[str]) -> None:
    if arguments[1:] or not (_SOURCES.value or _SCORE.value):
        raise app.UsageError("give --sources to run tests, --write_scoreboard to count, or both")
    unknown = set(_PROJECTS.value) - {project.name for project in PROJECTS}
    if unknown:
        raise app.UsageError(f"no such projects: {', '.join(sorted(unknown))}")
    chosen = [project for project in PROJECTS if project.name in _PROJECTS.value]
    complete = not _SOURCES.value or _run_all(chosen, Path(_SOURCES.value).resolve())
    if _SCORE.value:
        versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
        suite_score.update(SCOREBOARD, "ecosystem", {"versions": versions}, _scores())
        print(f"wrote {os.path.relpath(SCOREBOARD)}")
    sys.exit(not complete)


if __name__ == "__main__":
    app.run(main, argv=sys.argv)
