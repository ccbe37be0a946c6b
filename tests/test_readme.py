"""The Python examples of README.md run, each in a process of its own."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from neuronjax.faults import FAULTS
from tests.conftest import RunPython

README = Path(__file__).parent.parent / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("name", FAULTS)
def test_the_table_of_faults(name: str) -> None:
    """Every fault with its fields and their defaults."""
    fault = FAULTS[name]()
    values = {each.name: getattr(fault, each.name) for each in fields(fault)}
    written = " ".join(
        f"{field}={int(value) if isinstance(value, bool) else value}"
        for field, value in values.items()
    )
    assert f"| `{name}` | `{written}` |" in README.read_text()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(number: int, run_python: RunPython) -> None:
    done = run_python(
        EXAMPLES[number],
        {
            "JAX_PLATFORMS": "neuron",
            "NEURON_LOGICAL_NC_CONFIG": None,
            "NEURONJAX_TARGET": None,
            "XLA_FLAGS": None,
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
