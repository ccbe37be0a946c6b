"""Commands that run scripts, over odd programs: they show every program, without a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neuronjax.cli.main import main
from tests import forked
from tests.cli.test_monitor import free_port
from tests.conftest import PROJECT
from tests.odd_programs import PROGRAMS

SCRIPT = """\
import sys
import jax
from tests.odd_programs import PROGRAMS, values

for name in sys.argv[1:]:
    values(PROGRAMS[name], jax.devices()[:8])
"""
OFTEN = (
    "no arguments", "nothing at all", "donated in vain", "empty arrays", "int4", "host memory",
    "callbacks", "one core", "exported", "exceptions", "axis_index in a branch",
)  # fmt: skip
"""What every test run tries."""
ALL = tuple(name for name in PROGRAMS if name != "ordered callbacks")  # it looks at a value
RECORDED = (
    SCRIPT
    + """
from neuronjax.recording import client_in_use

report = client_in_use().monitor.report(0)["neuron_runtime_data"][0]["report"]
print(sum(program["executions"] for program in report["memory_used"]["loaded_models"]))
"""
)
"""As `SCRIPT`, and prints how many runs the monitor counted."""
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "NEURON"))}


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("lower",), OFTEN),
        pytest.param(("lint",), ALL, marks=pytest.mark.slow),
        pytest.param(("lower",), ALL, marks=pytest.mark.slow),
        pytest.param(("profile", "--executor=none"), ALL, marks=pytest.mark.slow),
    ],
    ids=("lower-often", "lint", "lower", "profile"),
)
def test_commands(command: tuple[str, ...], names: tuple[str, ...], tmp_path: Path) -> None:
    script = tmp_path / "odd.py"
    script.write_text(SCRIPT)
    name, *options = command
    if name == "profile":
        options.append(f"--out={tmp_path / 'profile'}")
    arguments = ["-m", "neuronjax.cli", name, "--target=trn2.48xlarge", *options, str(script)]
    environment = ENVIRONMENT | {"PYTHONPATH": str(PROJECT)}
    done = forked.run([*arguments, *names], env=environment, cwd=tmp_path, timeout=1800)
    refused = name == "lint"  # int4, callbacks and branches are findings
    assert done.returncode == refused, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "odd_programs.py:" in done.stdout


@pytest.mark.slow
def test_records_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every run on engines comes out as before, and the monitor counts it."""
    script, records = tmp_path / "odd.py", tmp_path / "records"
    script.write_text(RECORDED)
    environment = ENVIRONMENT | {
        "PYTHONPATH": str(PROJECT),
        "JAX_PLATFORMS": "neuron",
        "NEURONJAX_TARGET": "trn2.48xlarge",
        "NEURONJAX_LEGALITY": "off",
        "NEURONJAX_EXECUTOR": "engine",
        "NEURONJAX_RECORD_TO": str(records),
        "NEURONJAX_MONITOR_PORT": str(free_port()),
    }
    command = ["-m", "neuronjax.cli", "run", str(script)]
    done = forked.run([*command, *PROGRAMS], env=environment, cwd=tmp_path, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    found = sorted(records.iterdir())
    assert int(done.stdout) == len(found) > len(PROGRAMS)
    for record in found:
        assert main(["replay", str(record)]) == 0, record
        assert "results as recorded" in capsys.readouterr().out, record
