"""Collectives and sharded programs on eight emulated cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from neuronjax.host.client import HostClient
from tests.lower.differential import EXACT, Tolerance
from tests.lower.ranks import RANKS, check_sharded
from tests.partition.test_programs import PROGRAMS, Program

CLOSE = Tolerance(ulps=8, relative=2e-5)
HOST = {"cholesky and fft": frozenset({"custom_call", "convert", "fft"})}
"""Operations of these programs that no engine does."""


@pytest.fixture(scope="module")
def host() -> HostClient:
    return HostClient(RANKS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, cpu_devices: list[jax.Device], host: HostClient) -> None:
    program = PROGRAMS[name]
    run(program, cpu_devices, host, CLOSE, HOST.get(name, frozenset()))


def run(
    program: Program,
    devices: list[jax.Device],
    host: HostClient,
    tolerance: Tolerance,
    allowed: frozenset[str] = frozenset(),
    dtype: Any = np.float32,
) -> None:
    kind = AxisType.Explicit if program.explicit else AxisType.Auto
    names = ("x", "y")[: len(program.mesh)]
    grid = np.array(devices, dtype=object).reshape(program.mesh)
    mesh = Mesh(grid, names, axis_types=(kind,) * len(names))
    generator = np.random.default_rng(0)
    with jax.set_mesh(mesh):
        arguments = [
            jax.device_put(
                (generator.standard_normal(shape) * 9).astype(dtype), NamedSharding(mesh, spec)
            )
            for shape, spec in zip(program.shapes, program.specs, strict=True)
        ]
        check_sharded(
            program.build(mesh), arguments, devices, host, tolerance, program.donated, allowed
        )


ALL = P(("x", "y"))
BOTH = P("x", "y")


def mapped(
    body: Callable[[Any], Any], out: P, shape: tuple[int, ...] = (16, 32, 4), spec: P = BOTH
) -> Program:
    return Program(
        lambda mesh: jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False),
        (shape,),
        (spec,),
    )


def exchanged(split: int, joined: int) -> Callable[[Any], Any]:
    return lambda v: lax.all_to_all(v, "y", split, joined, tiled=True)


def ring(i: Any, v: Any) -> Any:
    return lax.ppermute(v, "y", [(0, 1), (1, 2), (2, 3), (3, 0)]) + i.astype(v.dtype)


BODIES: dict[str, Program] = {
    "gather along 1": mapped(lambda v: lax.all_gather(v, "y", axis=1, tiled=True), P("x")),
    "gather along 2": mapped(lambda v: lax.all_gather(v, "y", axis=2, tiled=True), ALL),
    "gather stacked along 1": mapped(lambda v: lax.all_gather(v, "x", axis=1), ALL),
    "scatter along 1": mapped(
        lambda v: lax.psum_scatter(v, "y", scatter_dimension=1, tiled=True), ALL
    ),
    "scatter along 2": mapped(
        lambda v: lax.psum_scatter(v, "y", scatter_dimension=2, tiled=True), ALL
    ),
    "scatter stacked": mapped(lambda v: lax.psum_scatter(v, "x", scatter_dimension=0), ALL, (4, 8)),
    **{
        f"exchange {split} and {joined}": mapped(exchanged(split, joined), ALL)
        for split in range(3)
        for joined in range(3)
    },
    "exchange, stacked": mapped(lambda v: lax.all_to_all(v, "y", 2, 0), ALL),
    "a ring backwards": mapped(
        lambda v: lax.ppermute(v, "y", [(i, (i - 1) % 4) for i in range(4)]), ALL
    ),
    "to a few": mapped(lambda v: lax.ppermute(v, ("x", "y"), [(3, 0), (1, 5), (0, 3)]), ALL),
    "maximum": mapped(lambda v: lax.pmax(v, ("x", "y")), ALL),
    "minimum": mapped(lambda v: lax.pmin(v, "x"), ALL),
    "several at once": mapped(
        lambda v: jnp.concatenate(
            [a.astype(v.dtype) for a in lax.psum((v, v[:1] + 1, (v * 2).astype(jnp.int32)), "y")]
        ),
        ALL,
    ),
    "average": mapped(lambda v: lax.pmean(v.astype(jnp.float32), "y"), ALL),
    "of a transposed value": mapped(lambda v: lax.psum(v.T, "y"), P(None, None, ALL[0])),
    "own number": mapped(lambda v: v + lax.axis_index(("x", "y")).astype(v.dtype), P("x", "y")),
    "in a loop": mapped(lambda v: lax.fori_loop(0, 5, ring, v), ALL),
}
"""Collectives along every dimension."""


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("dtype", [np.int32, np.float32], ids=["int32", "float32"])
def test_bodies(name: str, dtype: Any, cpu_devices: list[jax.Device], host: HostClient) -> None:
    tolerance = EXACT if dtype == np.int32 else CLOSE
    run(BODIES[name], cpu_devices, host, tolerance, dtype=dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.uint32, jnp.bfloat16, np.float16])
def test_types(dtype: Any, cpu_devices: list[jax.Device], host: HostClient) -> None:
    def body(v: Any) -> Any:
        gathered = lax.all_gather(v, "y", axis=1, tiled=True)
        return gathered + lax.pmax(v, "y").repeat(4, 1), lax.ppermute(v, "x", [(0, 1), (1, 0)])

    run(mapped(body, (ALL, ALL)), cpu_devices, host, EXACT, dtype=dtype)


@pytest.mark.parametrize("reduce", [jnp.all, jnp.any], ids=["all", "any"])
def test_truth(reduce: Callable[..., Any], cpu_devices: list[jax.Device], host: HostClient) -> None:
    program = Program(lambda mesh: lambda x: reduce(x > 3, axis=0), ((16, 16),), (P("x", "y"),))
    run(program, cpu_devices, host, EXACT)


def test_products(cpu_devices: list[jax.Device], host: HostClient) -> None:
    """No collective multiplies: ranks gather and reduce."""
    program = Program(lambda mesh: lambda x: jnp.prod(x, 0), ((16, 1000),), (P("x", "y"),))
    run(program, cpu_devices, host, EXACT, dtype=np.int32)
