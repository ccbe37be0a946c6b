"""A job for one process or several, on eight devices in all: what it computes, as hashes."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests import odd_programs

STEPS = 20
_D, _H, _B = 16, 32, 32


def _global(mesh: Mesh, value: np.ndarray, spec: P) -> jax.Array:
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), value.__getitem__)


def _hash(tree: Any) -> str:
    """Of whole values: what every process has goes to all."""
    leaves = [np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
              for leaf in jax.tree.leaves(tree)]  # fmt: skip
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


def training(devices: list[jax.Device], dtype: Any = jnp.float32) -> str:
    """Twenty steps of an MLP over data and model, with statistics over the whole batch."""
    mesh = Mesh(np.array(devices).reshape(4, 2), ("d", "m"), axis_types=(AxisType.Auto,) * 2)
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    params = {
        "w1": _global(mesh, normal(_D, _H), P(None, "m")),
        "b1": _global(mesh, normal(_H), P("m")),
        "w2": _global(mesh, normal(_H, _D), P("m", None)),
    }

    def loss(p: Any, x: jax.Array) -> jax.Array:
        out = jax.nn.gelu(x @ p["w1"] + p["b1"]) @ p["w2"]
        return jnp.mean((out / (1 + jnp.std(out, axis=0)) - x) ** 2)

    @jax.jit
    def step(p: Any, x: jax.Array) -> Any:
        grads = jax.grad(loss)(p, x)
        return jax.tree.map(lambda a, g: (a - 0.05 * g).astype(dtype), p, grads)

    for _ in range(STEPS):
        params = step(params, _global(mesh, normal(_B, _D), P("d")))
    return _hash(params)


def _collectives(x: jax.Array) -> list[jax.Array]:
    swap = [(i, (i + 3) % 4) for i in range(4)]
    return [
        lax.psum(x, "a"),
        lax.psum(x, ("a", "b")),
        lax.pmax(x, "b"),
        lax.pmin(x.astype(jnp.int8), ("b", "a")),
        lax.all_gather(x, "a", axis=1),
        lax.all_gather(x, "b", tiled=True),
        lax.psum_scatter(x, "a", scatter_dimension=1, tiled=True),
        lax.all_to_all(x, "a", 1, 2, tiled=True),
        lax.ppermute(x, "a", swap),
        lax.ppermute(x, "a", swap[:2]),
        lax.psum(x > 0, "a"),
        lax.psum(x.astype(jnp.bfloat16), "a"),
        lax.psum(x.astype(jnp.float8_e4m3fn), "a"),
        x + lax.axis_index("a") * 10 + lax.axis_index("b"),
    ]


def _in_control_flow(x: jax.Array) -> list[jax.Array]:
    def body(i: jax.Array, y: jax.Array) -> jax.Array:
        total = lax.psum(y, "a") / 4
        return lax.cond(i % 2 == 0, lambda z: lax.pmax(z, "b"), lambda z: z * 0.5, total)

    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return lax.psum(state[1], ("a", "b")).sum() < 1000

    return [
        lax.fori_loop(0, 5, body, x),
        lax.while_loop(unfinished, lambda s: (s[0] + 1, jnp.abs(s[1]) * 2), (0, x))[1],
        *lax.scan(lambda c, _: (lax.ppermute(c, "a", [(0, 1), (1, 0)]), c), x, None, 3),
    ]


def _mapped(function: Callable[[jax.Array], list[jax.Array]], devices: list[jax.Device]) -> str:
    mesh = Mesh(np.array(devices).reshape(2, 4).T, ("a", "b"))
    value = np.random.default_rng(1).standard_normal((8, 8, 12)).astype(np.float32)
    value[0, 0, 0], value[3, 1, 1] = np.nan, -0.0
    spec = P(("a", "b"))
    run = jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )
    return _hash(run(_global(mesh, value, spec)))


TASKS: dict[str, Callable[[list[jax.Device]], str]] = {
    "training": training,
    "training in bfloat16": lambda devices: training(devices, jnp.bfloat16),
    "collectives": lambda devices: _mapped(_collectives, devices),
    "control flow": lambda devices: _mapped(_in_control_flow, devices),
}
"""Name -> what computes a hash on eight devices."""


def state(devices: list[jax.Device]) -> dict[str, jax.Array]:
    """Something to keep: split over all devices, over some, and not at all."""
    mesh = Mesh(np.array(devices).reshape(4, 2), ("d", "m"))
    specs = {"both": P("d", "m"), "one": P("m"), "none": P()}
    value = np.arange(128, dtype=np.float32).reshape(16, 8)
    return {name: _global(mesh, value, spec) for name, spec in specs.items()}


def save(folder: Path, devices: list[jax.Device]) -> None:
    """Writes a checkpoint, every process its part."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state(devices))


def restored(folder: Path, devices: list[jax.Device]) -> bool:
    """Whether a checkpoint, of any number of processes, has what ``save`` writes."""
    wanted = state(devices)
    with ocp.StandardCheckpointer() as checkpointer:
        loaded = checkpointer.restore(folder, jax.tree.map(ocp.utils.to_shape_dtype_struct, wanted))
    equal = jax.tree.map(
        lambda a, b: (
            a.sharding == b.sharding
            and all(
                np.array_equal(x.data, y.data)
                for x, y in zip(a.addressable_shards, b.addressable_shards, strict=True)
            )
        ),
        loaded,
        wanted,
    )
    return all(jax.tree.leaves(equal))


def _on_the_last_process() -> list[float]:
    """What this process has of a program that runs on the last one's cores, called by all."""
    last = jax.process_count() - 1
    devices = jax.local_devices(process_index=last)
    rows = NamedSharding(Mesh(np.array(devices), "x"), P("x"))
    x = jax.device_put(np.ones((len(devices), 3), np.float32), rows)
    total = jax.jit(lambda x: (x + 1).sum())(x)
    twice = jax.jit(lambda x: x * 2, donate_argnums=0)(total)
    twice.block_until_ready()
    return [float(shard.data) for shard in twice.addressable_shards]


def _of_processes() -> dict[str, Any]:
    """What JAX's own functions for several processes say."""
    index, count = jax.process_index(), jax.process_count()
    mesh = jax.make_mesh((8,), ("x",))
    local = np.arange(8 // count, dtype=np.float32) + 100 * index
    whole = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), local)
    multihost_utils.sync_global_devices("here")
    sums = [
        jax.jit(lambda x: x.sum()),
        jax.jit(lambda x: x.sum()),  # the same program from another line
    ]
    total = sums[index % 2](whole)
    return {
        "devices": [[d.id, d.process_index, d.local_hardware_id, d.core] for d in jax.devices()],
        "local": [d.id for d in jax.local_devices()],
        "sum": float(total),
        "broadcast": float(multihost_utils.broadcast_one_to_all(np.float32(index + 7))),
        "gathered": np.asarray(multihost_utils.process_allgather(np.int32(index))).tolist(),
        "on the last": _on_the_last_process(),
        "bytes": [d.memory_stats()["bytes_in_use"] > 0 for d in jax.local_devices()],
    }


def main() -> None:
    """FOLDER TASK...: writes what a process finds to FOLDER/INDEX.json."""
    jax.distributed.initialize()
    folder, *tasks = sys.argv[1:]
    devices = jax.devices()
    facts = _of_processes() | {
        "results": {task: TASKS[task](devices) for task in tasks if task in TASKS},
        "shards": {task: odd_programs.shards(odd_programs.PROGRAMS[task], devices)
                   for task in tasks if task in odd_programs.PROGRAMS},
    }  # fmt: skip
    facts["restored"] = restored(Path(folder) / "before", jax.devices())
    save(Path(folder) / "after", jax.devices())
    path = Path(folder) / f"{jax.process_index()}.json"
    path.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
