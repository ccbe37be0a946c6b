"""One model in a process of its own: PyTorch, the platform, an estimate."""

from __future__ import annotations

import re
import subprocess
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

import neuronjax
from neuronjax.torch import Program, to_jax
from tests.forked import PROJECT
from tests.torch.survey.architectures import Model

TOLERANCE = 1e-5
"""Greatest difference of an output in ``ieee``, relative to its greatest number."""


def run(make: Callable[[], Model]) -> dict[str, Any]:
    """Whether a model has PyTorch's outputs, and its estimate."""
    row: dict[str, Any] = {"stage": "made"}
    try:
        module, inputs = make()
        row |= {"class": type(module).__name__, "inputs": [*inputs], "stage": "PyTorch"}
        row["parameters"] = sum(value.numel() for value in module.parameters())
        program = to_jax(module, **inputs)
        given = arrays_of(program, inputs)
        with torch.no_grad():
            expected = module(**inputs)  # writes to a cache, of which `given` has a copy
        row["stage"] = "JAX"
        got = jax.jit(program)(program.state, **given)
        row["error"] = float(f"{_difference(got, expected):.2g}")
        row["stage"] = "estimate"
        estimate = neuronjax.estimate(program)
        row["step_ns"] = round(estimate.step_ns)
        row["at_lines"] = round(_at_lines(estimate), 3)
        row["outcome"] = "equal" if row["error"] <= TOLERANCE else "differs"
        del row["stage"]
    except BaseException as error:
        row |= failure(error) | {"outcome": f"fails: {row.pop('stage')}"}
    return row


def failure(error: BaseException) -> dict[str, str]:
    """What an exception said and where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if notes := [note for note in getattr(error, "__notes__", ()) if "Raised in" in note]:
        reason += f" {notes[0]}"
    row = {"outcome": "fails", "reason": reason, "at": f"{last.filename}:{last.lineno}"}
    return {name: _PLACES.sub("", text) for name, text in row.items()}


_PLACES = re.compile(rf"{re.escape(str(PROJECT))}/|\S*/site-packages/")
"""Where this machine has the project and the libraries."""


def commit() -> str:
    """The commit that is checked out."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def arrays_of(program: Program, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with arrays, as copies; the others are in the program's example."""
    return {name: part for name, part in program.arrays(inputs).items() if _is_given(part)}


def _is_given(part: Any) -> bool:
    """Whether an argument has arrays; others are those of the example."""
    return any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(part))


def _difference(got: Any, expected: Any) -> float:
    """The greatest of all outputs that are arrays."""
    theirs = [leaf for leaf in jax.tree.leaves(expected) if isinstance(leaf, torch.Tensor)]
    ours = [leaf for leaf in jax.tree.leaves(got) if hasattr(leaf, "shape")]
    assert len(ours) == len(theirs), f"{len(ours)} outputs for {len(theirs)}"
    greatest = 0.0
    for mine, tensor in zip(ours, theirs, strict=True):
        value, reference = np.asarray(mine, np.float64), tensor.double().numpy()
        assert value.shape == reference.shape, f"{value.shape} for {reference.shape}"
        if value.size:
            same = np.isfinite(reference) | (value != reference)
            difference = np.abs(value - reference)[same].max(initial=0)
            greatest = max(
                greatest,
                difference / max(1e-6, np.abs(reference[np.isfinite(reference)]).max(initial=0)),
            )
    return greatest


def _at_lines(estimate: neuronjax.Estimate) -> float:
    """The share of the time of the costliest kernels whose line is one of a model's file."""
    whole = sum(kernel.time_ns for kernel in estimate.kernels)
    models = sum(kernel.time_ns for kernel in estimate.kernels if "/models/" in kernel.source)
    return models / whole if whole else 0.0
