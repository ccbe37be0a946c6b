"""An interrupt while a binary imports what it needs ends it with one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTING = """
import signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize(
    ("program", "moment"),
    [("train", "absl"), ("serve", "jax"), ("batch", "flax"), ("generate", "optax")],
)
def test_one_line(program: str, moment: str, tmp_path: Path) -> None:
    """Python runs the module `sitecustomize` first."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING.format(moment=moment))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", f"launch.{program}", "--help"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
