"""Where the time of a step is put: lines of the user or of a model's file, and paths of modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import jax

import neuronjax
from neuronjax.profiling.records import Part, ProgramProfile
from neuronjax.torch import to_jax
from tests.torch.survey.architectures import Model, of_transformers
from tests.torch.survey.run import arrays_of

LEAST = 0.95
"""The share of a step's time that has to be at such lines, and at modules."""

KINDS = ["bert", "t5", "gpt2", "llama", "qwen3_moe", "vit", "swin", "resnet", "whisper", "clip"]


def of_models() -> dict[str, Callable[[], Model]]:
    """Models of texts, images and sound."""
    makers = of_transformers()
    return {kind: makers[kind] for kind in KINDS}


def run(make: Callable[[], Model]) -> dict[str, Any]:
    """Shares of the time of one run, in a profile."""
    module, inputs = make()
    program = to_jax(module, **inputs)
    run_once = jax.jit(program)
    with neuronjax.profile() as recorded:
        jax.block_until_ready(run_once(program.state, **arrays_of(program, inputs)))
    name = type(module).__name__
    (profile,) = (one for one in recorded.profile.programs if name in one.name)
    lines = _share(profile, lambda part: "models" in PurePath(part.source).parts)
    layers = _share(profile, lambda part: part.scope.startswith(name))
    is_there = min(lines, layers) >= LEAST
    return {
        "class": name,
        "at_lines": round(lines, 3),
        "at_modules": round(layers, 3),
        "outcome": "attributed" if is_there else "elsewhere",
    }


def _share(profile: ProgramProfile, holds: Callable[[Part], bool]) -> float:
    parts = [(part, kernel.runs) for kernel in profile.kernels for part in kernel.parts]
    whole = sum(part.added_ns * runs for part, runs in parts)
    return sum(part.added_ns * runs for part, runs in parts if holds(part)) / whole
