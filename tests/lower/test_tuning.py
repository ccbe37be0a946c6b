"""Numbers that are handed to the passes decide over programs, and change no value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.engine_compiler import lower_program
from neuronjax.lower.tuning import DEFAULT, Tuning
from neuronjax.program.program import Program, Target
from neuronjax.program.text import format as text_of
from tests.lower.differential import CHIP, emulated, sent

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], dict[str, float]]] = {
    "tiles of a chain": (
        lambda x, y: jnp.tanh(x) + y, (normal(512, 4096), normal(512, 4096)),
        {"tile_elements": 512},
    ),
    "parts of rows": (lambda x: x.max(-1), (normal(4, 100_000),), {"long_row_parts": 16}),
    "rows of a layout": (lambda x: x.T + 1, (normal(256, 512),), {"worthwhile_elements": 1 << 20}),
    "kernels that join": (
        lambda x, w, i: jnp.sort(x @ w)[:, i], (normal(64, 64), normal(64, 64), np.int32(3)),
        {"joined_instructions": 1},
    ),
    "kernels that overlap": (
        lambda x, w, i: jnp.sort(x @ w)[:, i], (normal(64, 64), normal(64, 64), np.int32(3)),
        {"overlaps": 1, "joined_instructions": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_number_changes_the_program_and_no_value(name: str) -> None:
    function, arguments, changes = CASES[name]
    code = sent(jax.jit(function).trace(*arguments))

    def lowered(tuning: Tuning) -> Program:
        return lower_program(code, Target(CHIP), 1, tuning=tuning)

    usual, other = lowered(DEFAULT), lowered(replace(DEFAULT, **changes))
    assert text_of(usual) != text_of(other)
    first, second = (emulated(program, code, [arguments]) for program in (usual, other))
    for want, got in zip(first[0], second[0], strict=True):
        np.testing.assert_array_equal(got, want)
