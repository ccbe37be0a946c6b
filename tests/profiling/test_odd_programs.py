"""Odd programs under a profile: it has a row for each that ran, and values are those of ``cpu``."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import neuronjax
from tests.conftest import RunPython
from tests.odd_programs import PROGRAMS, values

OFTEN = (
    "no arguments", "nothing at all", "unused arguments", "empty arrays", "int4", "host memory",
    "one core", "a part of the mesh", "exported", "exceptions", "axis_index in a branch",
)  # fmt: skip
"""What every test run profiles, while the host computes."""

CODE = """\
import tests.conftest
import jax
from tests.profiling.test_odd_programs import PROGRAMS, check_profiled

for name in PROGRAMS:
    check_profiled(name, jax.devices("neuron"), jax.devices("cpu"))
"""


def check_profiled(name: str, neuron: list[jax.Device], cpu: list[jax.Device]) -> None:
    """Profiles a program, and compares what it returns."""
    with neuronjax.profile() as recorded:
        found = values(PROGRAMS[name], neuron)
    assert recorded.profile is not None
    assert recorded.profile.programs or name == "resharded", name  # copies are no programs
    assert str(recorded.profile)
    for ours, theirs in zip(found, values(PROGRAMS[name], cpu), strict=True):
        assert ours.dtype == theirs.dtype, name
        ours, theirs = (value.astype(np.complex128) for value in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("name", OFTEN)
def test_profiled(
    name: str, neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    check_profiled(name, neuron_devices, cpu_devices)


@pytest.mark.slow
def test_profiled_on_engines(run_python: RunPython) -> None:
    done = run_python(CODE, {"NEURONJAX_EXECUTOR": "engine"}, timeout=1200)
    assert done.returncode == 0, done.stderr
