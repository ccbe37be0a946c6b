"""Programs that are run with default settings, beside JAX's `cpu` platform."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True)
class Case:
    """A program and how near its results must be to those of `cpu`."""

    program: Callable[..., Any]
    """Called without arguments; what it computes on, and how, is its own matter."""
    tolerance: float = 0.0
    """Largest error relative to the largest result."""


def compared(case: Case) -> str:
    """What is wrong with a case; empty if nothing is."""
    results = {}
    for platform in ("cpu", "neuron"):
        with jax.default_device(jax.devices(platform)[0]):
            try:
                results[platform] = jax.tree.map(np.asarray, case.program())
            except Exception as error:
                return f"on {platform}: {type(error).__name__}: {error}"
    try:
        jax.tree.map(lambda *pair: _assert_close(*pair, case.tolerance), *results.values())
    except AssertionError as error:
        return str(error)
    return ""


def _assert_close(cpu: np.ndarray, neuron: np.ndarray, tolerance: float) -> None:
    assert (cpu.shape, cpu.dtype) == (neuron.shape, neuron.dtype)
    if tolerance == 0.0:
        np.testing.assert_array_equal(neuron, cpu)
    else:
        largest = np.abs(cpu).max(initial=0.0)
        np.testing.assert_allclose(neuron, cpu, rtol=0, atol=tolerance * largest)


def main(cases: Mapping[str, Case]) -> None:
    """Prints what is wrong with each case, as JSON."""
    set_ = [name for name in ("NEURONJAX_NUMERICS", "NEURONJAX_LEGALITY") if name in os.environ]
    assert not set_, f"{set_} are not as by default"
    print(json.dumps({name: compared(case) for name, case in cases.items()}))
