"""The Python examples of README.md and docs/ run, each in a process of its own."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import forked
from tests.conftest import PROJECT, RunPython

OF_OTHERS = [PROJECT / "docs" / name for name in ("keras.md", "pytorch.md")]
"""Pages whose examples need what the tests of parity have (`tests/torch/parity/test_pages.py`)."""
PAGES = sorted({PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")} - {*OF_OTHERS})
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def examples_of(pages: Iterable[Path]) -> dict[str, str]:
    """The examples in Python of pages, by the page and their number."""
    return {
        f"{page.name}-{number}": example
        for page in pages
        for number, example in enumerate(PYTHON.findall(page.read_text()))
    }


EXAMPLES = examples_of(PAGES)
COMMANDS = re.findall(r"^neuronjax .*", (PROJECT / "README.md").read_text(), re.MULTILINE)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, run_python: RunPython) -> None:
    example_runs(EXAMPLES[name], run_python)


def example_runs(example: str, run_python: RunPython) -> None:
    """Runs an example as a user does, which must print something."""
    done = run_python(
        example,
        {
            "JAX_PLATFORMS": "neuron",
            "NEURON_LOGICAL_NC_CONFIG": None,
            "NEURONJAX_TARGET": None,
            "XLA_FLAGS": None,
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


TRAIN = """
import jax
import jax.numpy as jnp

step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w))
w, x = jnp.ones((64, 64), jnp.bfloat16), jnp.ones((32, 64), jnp.bfloat16)
for _ in range(3):
    w = step(w, x)
print(w.sum())
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = forked.run(
        ["-m", "neuronjax.cli", *shlex.split(command, comments=True)[1:]],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
