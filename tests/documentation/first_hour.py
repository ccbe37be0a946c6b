"""Runs the transcript ``docs/first_hour.md`` with a wheel in an empty environment.

``python -m tests.documentation.first_hour WHEEL FOLDER`` writes the page's files into FOLDER, types
its commands, and compares what they print with the page. It ends with exit code 1 at the first
command that fails, prints something else, or shows a traceback.
"""

from __future__ import annotations

import argparse
import doctest
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "first_hour.md"
LIMIT_SECONDS = 900
"""Processor time of all commands."""
LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
BLOCK = re.compile(
    r"```(?:\{code-block\} python\n:caption: (?P<file>\S+)\n\n|console\n)(?P<text>.*?)```",
    re.DOTALL,
)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console, each with what it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def write(path: Path, text: str) -> None:
    """A file of the page. Blocks of one notebook are its cells."""
    if path.suffix != ".ipynb":
        path.write_text(text)
        return
    cell = {
        "id": f"cell-{len(text)}", "cell_type": "code", "execution_count": None, "metadata": {},
        "outputs": [], "source": text.strip(),
    }  # fmt: skip
    cells = json.loads(path.read_text())["cells"] if path.exists() else []
    book = {"cells": [*cells, cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(book))


def run(command: str, folder: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, in the environment ``venv`` once it is there."""
    kept = ("HOME", "LANG", "TMPDIR", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE")
    environ = {name: os.environ[name] for name in kept if name in os.environ}
    environ |= {"PATH": f"{folder / 'venv' / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environ, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def main() -> int:
    """Runs the page, and prints it as it goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, help="what is installed in place of the name")
    parser.add_argument("folder", type=Path, help="where the hour is spent")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True)
    same = doctest.OutputChecker()
    for block in BLOCK.finditer(PAGE.read_text()):
        if block["file"]:
            write(folder / block["file"], block["text"])
            continue
        for command, wanted in commands(block["text"]):
            begin = time.monotonic()
            typed = command.replace("install neuronjax", f"install {arguments.wheel.resolve()}")
            code, printed, errors = run(typed, folder)
            print(f"$ {command}    # {time.monotonic() - begin:.0f} s\n{printed}", flush=True)
            quiet = command.startswith(("pip ", "jupyter "))
            if (
                code
                or "Traceback" in errors + printed
                or not (quiet or same.check_output(wanted, printed, LIKE))
            ):
                print(f"exit code {code}; the page has\n{wanted}\nstandard error:\n{errors}")
                return 1
    used = os.times()
    spent = used.children_user + used.children_system
    print(f"{spent:.0f} s of processor time, at most {LIMIT_SECONDS}")
    return int(spent > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
