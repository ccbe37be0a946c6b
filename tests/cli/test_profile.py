"""``neuronjax profile`` in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

SCRIPT = """\
import sys
import jax
import numpy as np

@jax.jit
def attend(x, w):
    return jax.nn.softmax(x @ w)                                    # line 7

if "nothing" not in sys.argv:
    print("results", np.asarray(attend(np.ones((1024, 256), "f4"), np.ones((256, 8), "f4")))[0, 0])
if "interrupt" in sys.argv:
    raise KeyboardInterrupt
if "raise" in sys.argv:
    raise ValueError("no")
"""
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "NEURON"))}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(SCRIPT)
    command = ["-m", "neuronjax.cli", "profile", *arguments]
    return forked.run(command, env=ENVIRONMENT, cwd=folder, timeout=300)


def test_a_script_is_profiled_and_compared(tmp_path: Path) -> None:
    done = run(tmp_path, "--out=one", "job.py")
    assert done.returncode == 0, done.stderr
    assert "results 0.125" in done.stderr  # executed
    assert "jit_attend" in done.stdout
    assert "job.py:7" in done.stdout
    assert str(tmp_path / "one" / "report.html") in done.stdout
    written = {path.name for path in (tmp_path / "one").iterdir()}
    assert {"report.html", "trace.json", "summary.json", "profile.json"} <= written
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["jit_attend"]["total_time"]

    done = run(tmp_path, "--out=two", "--target=trn1.2xlarge", "--executor=none", "job.py")
    assert done.returncode == 0, done.stderr
    assert "trn1.2xlarge" in done.stdout

    done = run(tmp_path, "--out=both", "--compare", "one", "two")
    assert done.returncode == 0, done.stderr
    assert "before: trn2.3xlarge, LNC 2; after: trn1.2xlarge, LNC 1" in done.stdout
    assert "total_time" in done.stdout
    assert (tmp_path / "both" / "compare.html").is_file()


def test_a_process_is_profiled_by_a_variable(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    given = {"JAX_PLATFORMS": "neuron", "NEURONJAX_PROFILE_TO": str(tmp_path / "out")}
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env=ENVIRONMENT | given,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "jit_attend" in json.loads((tmp_path / "out" / "summary.json").read_text())


def test_what_ran_until_an_interruption_is_kept(tmp_path: Path) -> None:
    done = run(tmp_path, "--out=out", "job.py", "interrupt")
    assert done.returncode == 2
    assert "jit_attend" in done.stdout
    assert "jit_attend" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("job.py", "nothing"), 1, "No program was compiled for platform neuron"),
        (("job.py", "raise"), 2, "ValueError: no"),
        (("missing.py",), 2, "there is no script 'missing.py'"),
        (("--target=trn9", "job.py"), 2, "trn9"),
        (("--out=job.py/x", "job.py"), 2, "cannot be written to"),
        (("--compare", "job.py"), 2, "--compare takes two folders of profiles, but got 1"),
        (("--compare", "nowhere", "nothing"), 2, "there is no profile in 'nowhere'"),
    ],
)
def test_what_went_wrong(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr or "raise" in arguments
