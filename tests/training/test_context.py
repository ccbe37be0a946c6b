"""Attention whose positions several cores share: the same as of one core, with less memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from models.errors import ShardingError
from models.layers.attention import AttentionCall, dot_product_attention
from models.layers.masks import Visibility
from models.parallel.blockwise import Scoring
from models.parallel.context import ContextParallel
from models.parallel.order import balanced, inverse
from models.parallel.ring import Ring, ring_attention
from tests.quick_compile import QUICK_COMPILE

BATCH, LENGTH, WIDTH = 2, 32, 8
EXACT = {"rtol": 1e-5, "atol": 1e-6}


@dataclass(frozen=True)
class Case:
    """Attention, and cores along mesh axes."""

    method: str
    mesh: tuple[tuple[str, int], ...]
    heads: int = 4
    kv_heads: int = 4
    packed: bool = False
    window: int | None = None
    softcap: float | None = None


CASES = [
    Case("ring", (("context", 2),)),
    Case("ring", (("context", 8),), kv_heads=2, packed=True),
    Case("ring", (("data", 2), ("context", 2), ("model", 2)), kv_heads=2, packed=True, softcap=3.0),
    Case("ring", (("context", 4),), kv_heads=1, window=5),
    Case("all_to_all", (("context", 4),), kv_heads=2, packed=True),
    Case("all_to_all", (("data", 2), ("context", 2), ("model", 2)), kv_heads=2, window=5),
]


def inputs(heads: int, kv_heads: int) -> list[np.ndarray]:
    """Queries, keys, values, and the gradient of what comes out."""
    rng = np.random.default_rng(0)
    return [
        rng.normal(size=(BATCH, LENGTH, count, WIDTH)).astype(np.float32)
        for count in (heads, kv_heads, kv_heads, heads)
    ]


def segments_of(packed: bool) -> np.ndarray | None:
    rng = np.random.default_rng(1)
    return np.sort(rng.integers(0, 3, (BATCH, LENGTH)), axis=1).astype(np.int32) if packed else None


def with_gradients(attend: Callable[..., jax.Array], device: jax.Device, arrays: Any) -> Any:
    """What comes out, and the gradients of queries, keys and values."""

    def both(*arrays: jax.Array) -> Any:
        out, pull = jax.vjp(attend, *arrays[:3])
        return out, *pull(arrays[3])

    with jax.default_device(device):
        return jax.jit(both, compiler_options=QUICK_COMPILE)(*arrays)


def mesh_of(axes: tuple[tuple[str, int], ...], devices: list[jax.Device]) -> Mesh:
    sizes = [size for _, size in axes]
    return Mesh(np.array(devices[: int(np.prod(sizes))]).reshape(sizes), [name for name, _ in axes])


def shared_by(
    mesh: Mesh, method: str, window: int | None = None, softcap: float | None = None
) -> Callable[..., jax.Array]:
    """Attention of query, keys, values and, if there are any, segments of whole texts."""
    context = ContextParallel(mesh.shape["context"], method)
    rows = "data" if "data" in mesh.axis_names else None
    heads = "model" if "model" in mesh.axis_names else None

    def part(query: jax.Array, keys: jax.Array, values: jax.Array, *more: jax.Array) -> jax.Array:
        call = AttentionCall(Visibility(window, *more), softcap=softcap)
        return context.attend(query, keys, values, call)

    def shared(*arrays: jax.Array) -> jax.Array:
        order = context.order(arrays[0].shape[1])
        spec = PartitionSpec(rows, "context", heads)
        specs = tuple(spec if x.ndim > 2 else PartitionSpec(rows, "context") for x in arrays)
        region = jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=spec)
        return region(*(x[:, order] for x in arrays))[:, inverse(order)]

    return shared


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shared_attention_is_attention(
    case: Case, neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    attend = shared_by(mesh_of(case.mesh, neuron_devices), case.method, case.window, case.softcap)
    segments = segments_of(case.packed)
    more = () if segments is None else (jnp.asarray(segments),)

    def whole(*arrays: jax.Array) -> jax.Array:
        call = AttentionCall(Visibility(case.window, *more), softcap=case.softcap)
        return dot_product_attention(*arrays, call)

    arrays = inputs(case.heads, case.kv_heads)
    got = with_gradients(lambda *arrays: attend(*arrays, *more), neuron_devices[0], arrays)
    expected = with_gradients(whole, cpu_devices[0], arrays)
    for name, ours, theirs in zip(("out", "query", "keys", "values"), got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, **EXACT, err_msg=name)


@pytest.mark.parametrize("packed", [False, True])
def test_a_ring_where_all_see_all(
    packed: bool, neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    ring = Ring(axis="context", size=4, causal=False)
    scoring = Scoring(scale=WIDTH**-0.5)
    segments = segments_of(packed)
    more = () if segments is None else (segments,)
    spec = PartitionSpec(None, "context")

    def shared(*arrays: jax.Array) -> jax.Array:
        return jax.shard_map(
            lambda *parts: ring_attention(ring, scoring, *parts),
            mesh=mesh_of((("context", 4),), neuron_devices),
            in_specs=(spec,) * (3 + len(more)),
            out_specs=spec,
        )(*arrays, *more)

    def whole(*arrays: jax.Array) -> jax.Array:
        same = None if segments is None else segments[:, :, None] == segments[:, None, :]
        call = AttentionCall(None if same is None else jnp.asarray(same))
        return dot_product_attention(*arrays, call)

    arrays = inputs(4, 2)
    got = with_gradients(shared, neuron_devices[0], arrays)
    expected = with_gradients(whole, cpu_devices[0], arrays)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, **EXACT)


def test_balanced_order_gives_each_core_as_many_keys() -> None:
    order = balanced(48, 4)
    np.testing.assert_array_equal(np.sort(order), np.arange(48))
    np.testing.assert_array_equal(order[inverse(order)], np.arange(48))
    assert len(set((order + 1).reshape(4, -1).sum(axis=1))) == 1


def test_memory_of_a_core_falls_with_the_cores(neuron_devices: list[jax.Device]) -> None:
    """Scores fall with the square of the cores; queries, keys and values with their number."""

    def memory(cores: int) -> int:
        mesh = mesh_of((("context", cores),), neuron_devices)
        attend = shared_by(mesh, "ring")
        sharding = jax.NamedSharding(mesh, PartitionSpec(None, "context"))
        array = jax.ShapeDtypeStruct((1, 512, 2, 16), jnp.float32, sharding=sharding)

        def loss(*arrays: jax.Array) -> jax.Array:
            return jnp.sum(attend(*arrays) ** 2)

        analysis = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*[array] * 3).compile()
        found = analysis.memory_analysis()
        return found.temp_size_in_bytes + found.argument_size_in_bytes

    of_two, of_eight = memory(2), memory(8)
    assert of_eight <= of_two / 4 * 1.1


@pytest.mark.parametrize(
    ("length", "method", "heads", "message"),
    [
        (36, "ring", 4, "36 positions cannot be split over context=8 with 'ring'"),
        (36, "all_to_all", 4, "needs 8 equal chunks. Use a multiple of 8"),
        (32, "all_to_all", 4, "cannot split the 4 query heads of a core over context=8"),
        (32, "tree", 4, "method 'tree' is not supported; choose one of ring, all_to_all"),
    ],
)
def test_what_does_not_divide_is_refused(
    length: int, method: str, heads: int, message: str
) -> None:
    def share() -> None:
        context = ContextParallel(8, method)
        context.order(length)
        context.attend(*map(jnp.asarray, inputs(heads, heads)[:3]), AttentionCall(Visibility()))

    with pytest.raises(ShardingError, match=message):
        share()
