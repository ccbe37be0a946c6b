"""Sphinx makes the site of these pages: ``make docs``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import command_pages  # noqa: E402

from neuronjax import __version__  # noqa: E402

project = "neuronjax"
version = release = __version__
author = "The neuronjax maintainers"
copyright = f"{author}; Apache-2.0. This is no product of AWS"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["generated", "jupyter_execute"]
html_theme = "furo"
html_title = f"neuronjax {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": "https://github.com/neuronjax/neuronjax",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# Tutorials use `models/`, and run as in a shell without variables of the emulator.
os.environ["PYTHONPATH"] = str(ROOT)

autodoc_typehints = "description"
autodoc_member_order = "bysource"
default_role = "code"
suppress_warnings = ["ref.python"]  # fields of several records have the name of a type


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


def write_commands(app: Sphinx) -> None:
    """A page for each command, from its parser."""
    command_pages.write(Path(app.srcdir) / "commands")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_validation)
    app.connect("builder-inited", write_commands)
