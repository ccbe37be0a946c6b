"""An interrupt or a missing package while a binary imports what it needs ends it with one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FINDER = """
import signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r}:
            {statement}

sys.meta_path.insert(0, Finder())
"""
INTERRUPT = "signal.raise_signal(signal.SIGINT)"
MISSING = "raise ModuleNotFoundError(name=name)"
TO_INSTALL = "flax is not installed; in the checkout: pip install -e . --group jobs\n"


@pytest.mark.parametrize(
    ("program", "moment", "statement", "code", "line"),
    [
        ("train", "absl", INTERRUPT, 130, "interrupted\n"),
        ("serve", "jax", INTERRUPT, 130, "interrupted\n"),
        ("batch", "flax", INTERRUPT, 130, "interrupted\n"),
        ("generate", "optax", INTERRUPT, 130, "interrupted\n"),
        ("train", "flax", MISSING, 2, TO_INSTALL),
    ],
)
def test_one_line(
    program: str, moment: str, statement: str, code: int, line: str, tmp_path: Path
) -> None:
    """Python runs the module `sitecustomize` first."""
    (tmp_path / "sitecustomize.py").write_text(FINDER.format(moment=moment, statement=statement))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", f"launch.{program}", "--help"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", line)
