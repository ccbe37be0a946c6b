"""Replica groups in every form that HLO prints."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronjax.errors import PartitionError
from neuronjax.partition.groups import Groups, mesh_groups, parse_groups


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{{0, 4}, {1, 5}, {2}}", ((0, 4), (1, 5), (2,))),
        ("{{3,1,0,2}}", ((3, 1, 0, 2),)),
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("[8,1]<=[8]", tuple((i,) for i in range(8))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[4,2]<=[2,2,2]T(2,0,1)", ((0, 2), (4, 6), (1, 3), (5, 7))),
        ("mesh['x'=2,'y'=4] {'y'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['x'=2,'y'=4] {'x'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=2,'y'=4] {'x','y'}", (tuple(range(8)),)),
        ("mesh['x'=2,'y'=4] {'y','x'}", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("mesh['x'=8] {'x':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=8] {'x':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=8] {'x':(4)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=8] {'x':(2)4}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['x'=8] {'x':(1)2,'x':(4)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['x'=4,'y'=2] {'x':(2)2,'y'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        (
            "mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_0'}",
            ((0, 1, 2, 3), (4, 5, 6, 7)),
        ),
        (
            "mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}",
            ((0, 4), (1, 5), (2, 6), (3, 7)),
        ),
        (
            "mesh['axis_0'=2,'axis_1'=1,'axis_2'=4], device_ids=([2,2,2]T(1,0,2)) {'axis_0'}",
            ((0, 2), (1, 3), (4, 6), (5, 7)),
        ),
        ("mesh['x'=2,'y'=2], device_ids=(3,2,1,0) {'y'}", ((3, 2), (1, 0))),
    ],
)  # fmt: skip
def test_form(text: str, groups: Groups) -> None:
    assert parse_groups(text, 8) == groups


@pytest.mark.parametrize("text", ["", "8", "[2,4]", "mesh['x'=2]", "mesh['x'=4] {'x':2}"])
def test_unknown_form_is_refused(text: str) -> None:
    with pytest.raises(PartitionError, match="unknown"):
        parse_groups(text, 8)


@st.composite
def iota_forms(draw: st.DrawFn) -> tuple[list[int], list[int], list[int] | None]:
    """Sizes of the groups' table, of the grid before the permutation, and the permutation."""
    reshape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    members = draw(st.sampled_from([n for n in range(1, 257) if np.prod(reshape) % n == 0]))
    order = draw(st.none() | st.permutations(range(len(reshape))))
    return [int(np.prod(reshape)) // members, members], reshape, order


def joined(entries: Iterable[object]) -> str:
    return ",".join(map(str, entries))


@given(iota_forms())
def test_iota_form_is_numpy(form: tuple[list[int], list[int], list[int] | None]) -> None:
    dims, reshape, order = form
    text = f"[{joined(dims)}]<=[{joined(reshape)}]"
    grid = np.arange(np.prod(reshape)).reshape(reshape)
    if order is not None:
        text += f"T({joined(order)})"
        grid = np.transpose(grid, order)
    assert parse_groups(text, grid.size) == tuple(map(tuple, grid.reshape(dims).tolist()))


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_mesh_form_is_numpy(sizes: list[int], data: st.DataObject) -> None:
    """Groups over axes, in the order written, are the grid with these axes moved to the end."""
    axes = data.draw(st.lists(st.sampled_from(range(len(sizes))), unique=True, min_size=1))
    order = data.draw(st.none() | st.permutations(range(len(sizes))))
    mesh = joined(f"'a{i}'={size}" for i, size in enumerate(sizes))
    over = joined(f"'a{axis}'" for axis in axes)
    grid = np.arange(np.prod(sizes)).reshape(sizes)
    text = f"mesh[{mesh}] {{{over}}}"
    if order is not None:
        before = [sizes[dim] for dim in np.argsort(order)]
        grid = np.arange(np.prod(sizes)).reshape(before).transpose(order)
        text = f"mesh[{mesh}], device_ids=([{joined(before)}]T({joined(order)})) {{{over}}}"
    rest = [dim for dim in range(len(sizes)) if dim not in axes]
    members = int(np.prod([sizes[axis] for axis in axes]))
    expected = grid.transpose(rest + axes).reshape(-1, members)
    assert parse_groups(text, grid.size) == tuple(map(tuple, expected.tolist()))


def test_groups_over_a_mesh_are_read_by_instruction() -> None:
    text = """
  %a.1 = f32[4] all-reduce(%x), channel_id=3, replica_groups=mesh['x'=2,'y'=4] {'y'}, to_apply=%add
  %b = f32[4] all-gather(%x), channel_id=5, replica_groups={{0,2},{1,3}}, dimensions={0}
  ROOT %c = f32[4] all-gather(%x), replica_groups=mesh['x'=8] {'x'}, dimensions={0}
  %d = f32[4] all-reduce(%x), channel_id=6, replica_groups=[2,4]<=[8], to_apply=%add
"""
    assert mesh_groups(text, 8) == {
        "a.1": ((0, 1, 2, 3), (4, 5, 6, 7)),
        "c": (tuple(range(8)),),
    }
