"""Programs that the compiler makes: above their rooflines, and jumps change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from neuronjax.lower.sync.synchronise import synchronise
from neuronjax.program.program import Program, Target
from neuronjax.timing import simulate as simulation
from neuronjax.timing.roofline import roofline
from neuronjax.timing.schedule import schedule
from tests.lower.differential import lowered_function


def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def layers(weights: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda c, w: (jax.nn.gelu(c @ w), None), x, weights)[0]


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "matmul": (jnp.matmul, (shape(1024, 1024), shape(1024, 1024))),
    "softmax": (jax.nn.softmax, (shape(512, 1024, dtype=jnp.float32),)),
    "layers": (layers, (shape(12, 256, 256), shape(256, 256))),
}


@pytest.fixture(scope="module", params=CASES)
def program(request: pytest.FixtureRequest) -> Program:
    function, arguments = CASES[request.param]
    return lowered_function(function, *arguments)[0]


@pytest.mark.parametrize("lnc", [1, 2])
def test_above_the_roofline_and_exact(
    program: Program, lnc: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(program.target.chip, lnc)
    timed = synchronise(dataclasses.replace(program, target=target))
    timeline = schedule(timed)
    for resource, bound in roofline(timed).bounds_ns.items():
        assert bound <= timeline.total_ns - timeline.launch_ns, resource
    monkeypatch.setattr(simulation, "FEWEST_RUNS", 10**15)
    assert schedule(timed).total_ns == timeline.total_ns


FILLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "constant": (lambda: jnp.zeros((2048, 2048), jnp.bfloat16), ()),
    "scalar": (lambda x: jnp.broadcast_to(x, (2048, 2048)), (shape(),)),
    "column": (lambda x: jnp.broadcast_to(x, (2048, 2048)), (shape(2048, 1),)),
    "row": (lambda x: jnp.broadcast_to(x, (2048, 2048)), (shape(2048),)),
}


@pytest.mark.parametrize("name", FILLS)
def test_a_fill_costs_its_bytes(name: str) -> None:
    """It writes what an addition reads and writes."""
    function, arguments = FILLS[name]
    fill, addition = (
        schedule(synchronise(lowered_function(*each)[0]))
        for each in ((function, *arguments), (lambda x: x + 1, shape(2048, 2048)))
    )
    assert fill.total_ns < addition.total_ns
