"""Arrays by the user's names and how the mesh splits them, against JAX's own shardings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import neuronjax
from neuronjax.profiling import splits, store
from neuronjax.profiling.records import ProgramProfile, Split

P = PartitionSpec
SHAPE = (8, 16, 4)
SPECS = [
    P(), P("a"), P(None, "b"), P("a", "b"), P("b", "a"), P(("a", "b")), P(None, ("b", "a")),
    P("c", None, "a"), P(None, ("c", "b"), "a"), P("a", "b", "c"),
]  # fmt: skip


@pytest.fixture(scope="module")
def mesh(neuron_devices: list[jax.Device]) -> jax.sharding.Mesh:
    return jax.make_mesh(
        (2, 2, 2), ("a", "b", "c"), (AxisType.Auto,) * 3, devices=neuron_devices[:8]
    )


@pytest.fixture(scope="module")
def program(mesh: jax.sharding.Mesh, tmp_path_factory: pytest.TempPathFactory) -> ProgramProfile:
    """A recorded run of a function of arrays of every sharding."""
    folder = tmp_path_factory.mktemp("splits")
    arrays = {
        f"w{number}": jax.device_put(jnp.zeros(SHAPE), NamedSharding(mesh, spec))
        for number, spec in enumerate(SPECS)
    }
    out = NamedSharding(mesh, P("b"))

    def total(params: dict[str, jax.Array], scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.with_sharding_constraint(sum(params.values()) * scale, out), scale + 1

    with neuronjax.profile(folder):
        jax.block_until_ready(jax.jit(total)(arrays, jnp.float32(2)))
    programs = store.read(folder).programs
    return next(program for program in programs if program.name == "jit_total")


def _specs(program: ProgramProfile) -> Iterator[tuple[str, Split, str]]:
    for array in program.arrays:
        split = program.splits[array.split]
        yield array.name, split, splits.spec(split, program.mesh)


def test_arrays_have_the_names_of_the_user(program: ProgramProfile) -> None:
    names = [array.name for array in program.arrays]
    assert names == [
        *(f"params['w{n}']" for n in range(len(SPECS))),
        "scale",
        "result[0]",
        "result[1]",
    ]
    by_name = {array.name: array for array in program.arrays}
    for number, spec in enumerate(SPECS):
        array = by_name[f"params['w{number}']"]
        parts = np.prod([2 for entry in spec if entry for _ in np.atleast_1d(entry)])
        assert (array.kind, array.dtype, array.shape) == ("argument", "float32", SHAPE)
        assert array.nbytes == 4 * np.prod(SHAPE) // parts
    in_hbm = {tensor.name for tensor in program.held if tensor.memory == "hbm"}
    assert set(names) <= in_hbm


def test_specs_are_those_of_the_user(program: ProgramProfile, mesh: jax.sharding.Mesh) -> None:
    wanted = {f"params['w{number}']": spec for number, spec in enumerate(SPECS)}
    wanted |= {"result[0]": P("b")}
    for name, _, text in _specs(program):
        spec = wanted.get(name, P())
        rank = len(SHAPE) if name in wanted else 0
        written = NamedSharding(mesh, eval(text, {"P": PartitionSpec}))
        assert written.is_equivalent_to(NamedSharding(mesh, spec), rank), (name, text)


def test_tiles_lie_where_jax_puts_them(program: ProgramProfile, mesh: jax.sharding.Mesh) -> None:
    value = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    for number, spec in enumerate(SPECS):
        split = program.splits[program.arrays[number].split]
        parts = NamedSharding(mesh, spec).devices_indices_map(SHAPE)
        side = [size // tiles for size, tiles in zip(SHAPE, split.tiles, strict=True)]
        for place, ranks in zip(np.ndindex(*split.tiles), split.ranks, strict=True):
            tile = tuple(slice(at * n, (at + 1) * n) for at, n in zip(place, side, strict=True))
            for rank in ranks:
                index = parts[mesh.devices.flat[rank]]
                np.testing.assert_array_equal(value[tile], value[index])


def test_the_page_shows_each_split_once(program: ProgramProfile) -> None:
    entries = splits.described(program)
    texts = [str(entry["spec"]) for entry in entries]
    assert len(texts) == len(set(texts)) == len({*SPECS, P("b")})  # "scale" is as whole as w0
    whole = entries[texts.index("P()")]
    assert (whole["copies"], whole["count"]) == (8, 3)


@pytest.mark.parametrize(
    ("tiles", "rows", "columns"),
    [
        ((1, 1), 1, 1), ((4,), 1, 4), ((4, 1), 4, 1), ((1, 4), 1, 4), ((2, 3, 4), 6, 4),
        ((2, 3, 1), 2, 3),
    ],
)  # fmt: skip
def test_pictures(tiles: tuple[int, ...], rows: int, columns: int) -> None:
    count = rows * columns
    split = Split(tiles, tuple((number,) for number in range(count)))
    picture = splits.svg(split, [("x", count)], range(100, 100 + count))
    assert f'aria-label="{rows} by {columns} tiles"' in picture
    assert [picture.count(f">on core {100 + number}<") for number in range(count)] == [1] * count


def test_devices_in_an_order_of_their_own_have_no_axes(
    neuron_devices: list[jax.Device], tmp_path: Path
) -> None:
    turned = jax.sharding.Mesh(np.array(neuron_devices[:4])[[2, 0, 3, 1]], ("x",))
    x = jax.device_put(jnp.zeros((8, 2)), NamedSharding(turned, P("x")))
    with neuronjax.profile(tmp_path):
        jax.block_until_ready(jax.jit(lambda x: x + 1)(x))
    (program,) = store.read(tmp_path).programs
    for _, split, text in _specs(program):
        assert text == "P('x', None)" if program.mesh else "P(4 tiles, None)"
        assert sorted(rank for ranks in split.ranks for rank in ranks) == [0, 1, 2, 3]
