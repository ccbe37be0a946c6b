"""One model in a process of its own: PyTorch, the platform, an estimate."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

import neuronjax
from neuronjax.torch import to_jax
from tests.forked import PROJECT
from tests.torch.survey.architectures import Model

TOLERANCE = 1e-5
"""Greatest difference of an output in ``ieee``, relative to its greatest number."""


def surveyed(make: Callable[[], Model]) -> dict[str, Any]:
    """A row of the table."""
    begin = time.monotonic()
    row: dict[str, Any] = {}
    stage = "made"
    try:
        module, inputs = make()
        row |= {"class": type(module).__name__, "inputs": [*inputs]}
        row["parameters"] = sum(value.numel() for value in module.parameters())
        stage = "PyTorch"
        program = to_jax(module, **inputs)
        given = {name: part for name, part in program.arrays(inputs).items() if _is_given(part)}
        with torch.no_grad():
            expected = module(**inputs)  # writes to a cache, of which `given` has a copy
        stage = "JAX"
        got = jax.jit(program)(program.state, **given)
        row["error"] = float(f"{_difference(got, expected):.2g}")
        stage = "estimate"
        estimate = neuronjax.estimate(program)
        row["step_ns"] = round(estimate.step_ns)
        row["at_lines"] = round(_at_lines(estimate), 3)
        row["outcome"] = "equal" if row["error"] <= TOLERANCE else "differs"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        row |= {"outcome": f"fails: {stage}", "reason": said}
        row["at"] = f"{last.filename}:{last.lineno}"
        if notes := [note for note in getattr(error, "__notes__", ()) if "Raised in" in note]:
            row["reason"] += f" {notes[0]}"
    for name in {"at", "reason"} & {*row}:
        row[name] = _PLACES.sub("", row[name])
    return row | {"seconds": round(time.monotonic() - begin, 1)}


_PLACES = re.compile(rf"{re.escape(str(PROJECT))}/|\S*/site-packages/")
"""Where this machine has the project and the libraries."""


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
