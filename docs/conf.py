"""Sphinx makes the site of these pages: ``make docs``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx

project = "neuronjax"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["generated", "jupyter_execute"]
html_theme = "furo"
html_title = "neuronjax"
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# Tutorials use `models/`, and run as in a shell without variables of the emulator.
os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])

autodoc_typehints = "description"
default_role = "code"


def write_validation(app: Sphinx) -> None:
    """The table of predictions beside measurements, as the checkout predicts them."""
    folder = Path(app.srcdir) / "generated"
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "neuronjax.cli", "validate"],
        capture_output=True,
        text=True,
        check=True,
    )
    (folder / "validation.md").write_text(f"```text\n{done.stdout}```\n")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_validation)
