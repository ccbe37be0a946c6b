"""Programs with work that no engine does, or whose length data decide, and what is said of their
time wherever it is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import neuronjax
from neuronjax.planning.fit import fit
from neuronjax.planning.sweep import Estimating, Grid, sweep
from neuronjax.planning.workload import Factory

Function = Callable[[Any], Any]

X = jax.ShapeDtypeStruct((16, 16), jnp.float32)


def _called(x: jax.Array) -> Any:
    return jax.pure_callback(lambda y: y, X, x) @ x


PROGRAMS: dict[str, tuple[Function, str]] = {
    "products": (lambda x: x @ x, ""),
    "fft": (lambda x: jnp.fft.fft(x).real @ x, "fft runs on the host"),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.T), "custom_call runs on the host"),
    "all of it": (lambda x: jnp.linalg.eigvals(x).real, "custom_call runs on the host"),
    "callback": (_called, "custom_call runs on the host"),
    "complex": (lambda x: abs(x * 1j), "runs on the host"),
    "trips": (lambda x: lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x), "1 trips"),
}
"""Program -> what must be said of its time; nothing of the first."""


def _cost(function: Function, folder: Path) -> str:
    return str(jax.jit(function).lower(X).compile().cost_analysis().get("assumed", ""))


def _estimate(function: Function, folder: Path) -> str:
    found = str(neuronjax.estimate(function, X, target="trn2.3xlarge"))
    return found.partition("Assumed\n")[2]


def _factory(function: Function) -> Factory:
    return Factory(make=lambda: (function, X), name="program")


def _sweep(function: Function, folder: Path) -> str:
    found = str(sweep(Estimating(factory=_factory(function)), Grid(targets=["trn2.3xlarge"])))
    return found.partition("Assumed\n")[2]


def _fit(function: Function, folder: Path) -> str:
    return str(fit(_factory(function), "trn2.3xlarge")).partition("Assumed\n")[2]


def _profile(function: Function, folder: Path) -> str:
    x = jnp.eye(16)
    with neuronjax.profile(folder) as profiled:
        jax.jit(function)(x)
    assert json.loads((folder / "summary.json").read_text())
    return str(profiled).partition("Assumed, or not timed:\n")[2]


def _summary(function: Function, folder: Path) -> str:
    _profile(function, folder)
    programs = json.loads((folder / "summary.json").read_text()).values()
    return "".join(line for program in programs for line in program["assumed"])


def _trace(function: Function, folder: Path) -> str:
    _profile(function, folder)
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    runs = [event for event in events if event.get("cat") == "programs"]
    assert runs
    return "".join(run["args"].get("assumed", "") for run in runs)


def _jax_profiler(function: Function, folder: Path) -> str:
    with jax.profiler.trace(folder):
        jax.jit(function)(jnp.eye(16)).block_until_ready()
    (path,) = folder.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(path)).planes
    lines = [line for plane in planes if "NeuronCore" in plane.name for line in plane.lines]
    runs = [event for line in lines if line.name == "programs" for event in line.events]
    assert runs
    return "".join(str(dict(run.stats).get("assumed", "")) for run in runs)


DOORS: dict[str, Callable[[Function, Path], str]] = {
    "compiled.cost_analysis": _cost,
    "estimate": _estimate,
    "sweep": _sweep,
    "fit": _fit,
    "profile": _profile,
    "summary.json": _summary,
    "trace.json": _trace,
    "jax.profiler": _jax_profiler,
}
"""Where times are told -> what is said there of those of a function."""


def tell(door: str, folder: Path) -> None:
    """Prints what is said there of each program, by name."""
    told = {name: DOORS[door](program, folder / name) for name, (program, _) in PROGRAMS.items()}
    print(json.dumps(told))
