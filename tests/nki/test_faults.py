"""A hundred mistakes in ten kernels: each is found, with a line of where it is made."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate.core import DataflowOrder
from neuronjax.errors import KernelError, KernelWarning
from tests.nki.faulty_kernels import RECIPES, STAGES, Mistakes, Place, expected, kernel, lines

X = np.random.default_rng(0).standard_normal((256, 64)).astype(np.float32)
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if number >= 3 else [])
    for number, name in enumerate(RECIPES)
]
PLACES: list[Place] = [(kind, number) for kind in STAGES for number in range(2)]


@pytest.mark.parametrize("order", [None, DataflowOrder(seed=5)], ids=["program", "dataflow"])
@pytest.mark.parametrize("recipe", NAMES)
def test_kernels_without_mistakes(recipe: str, order: DataflowOrder | None) -> None:
    mistakes = Mistakes()
    result = nki.simulate(kernel[2], order)(X, RECIPES[recipe], mistakes)
    right = expected(X, RECIPES[recipe])
    np.testing.assert_allclose(result, right, rtol=0, atol=1e-5 * np.abs(right).max())
    assert set(mistakes.possible) == set(PLACES)
    assert np.abs(right).max() > 0


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0]} {place[1]}")
@pytest.mark.parametrize("recipe", NAMES)
def test_mistakes_are_found(recipe: str, place: Place) -> None:
    found, _, _ = _found(recipe, Mistakes(place)).partition(" Called from ")
    numbers = [int(number) for number in re.findall(r"faulty_kernels\.py:(\d+)", found)]
    assert numbers
    assert set(numbers) <= set(lines(place[0]))


def _found(recipe: str, mistakes: Mistakes) -> str:
    """What is said about a kernel."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", KernelWarning)
        try:
            kernel[2].trace(X, RECIPES[recipe], mistakes)
        except KernelError as error:
            return str(error)
    return "\n".join(str(warning.message) for warning in warned)
