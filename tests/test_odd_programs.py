"""Odd programs under functions that look at a function: each gets every jitted function that a
program calls, with its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import neuronjax
from neuronjax.errors import UnsupportedProgramError
from tests.odd_programs import PROGRAMS, values

TOOLS: dict[str, Callable[..., object]] = {
    "estimate": neuronjax.estimate,
    "compare": neuronjax.compare,
    "nan_report": neuronjax.nan_report,
    "program_text": neuronjax.program_text,
}
OFTEN = ("no arguments", "donated", "callbacks", "ordered callbacks", "exceptions", "decomposed")
"""What every test run tries."""
CALLED_OTHERWISE = ("resharded", "ahead of time")
"""Programs that call no jitted function."""
REFUSED = {(tool, "ordered callbacks") for tool in ("compare", "nan_report")}


@dataclass(frozen=True)
class Watched:
    """A jitted function that is shown to a tool before it is called."""

    jitted: Any
    show: Callable[..., None]

    def __call__(self, *arguments: Any) -> Any:
        self.show(self.jitted, *arguments)
        return self.jitted(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jitted, name)


@functools.cache
def alone(name: str) -> list[np.ndarray]:
    """What a program returns when nobody looks at it."""
    return values(PROGRAMS[name], jax.devices("neuron"))


@pytest.mark.parametrize(
    "name",
    [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS],
)
@pytest.mark.parametrize("tool", TOOLS)
def test_tool(
    tool: str, name: str, neuron_devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, or refuses in words; exceptions are the user's; arguments stay as they were."""
    answers: list[object] = []

    def show(jitted: Any, *arguments: Any) -> None:
        if (tool, name) in REFUSED:
            with pytest.raises(UnsupportedProgramError, match="remove ordered=True"):
                TOOLS[tool](jitted, *arguments)
        else:
            answers.append(TOOLS[tool](jitted, *arguments))

    jit = jax.jit
    expected = alone(name)
    monkeypatch.setattr(
        jax, "jit", lambda function, **options: Watched(jit(function, **options), show)
    )
    for found, wanted in zip(values(PROGRAMS[name], neuron_devices), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert bool(answers) is not (name in CALLED_OTHERWISE or (tool, name) in REFUSED)
    for answer in answers:
        assert answer is None if tool == "nan_report" else str(answer)
