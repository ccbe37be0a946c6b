"""Traffic over links against sums by hand, and against what conservation demands."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronjax.machine.machine import Machine
from neuronjax.timing.links import LinkTraffic, route
from neuronjax.timing.network import Op

TRN1 = Machine.create("trn1.32xlarge")
"""A torus of 4 x 4 chips with two cores each."""

ROW = tuple(range(8))
COLUMN = (0, 8, 16, 24)

CASES = {
    "one chip": (Op.ALL_REDUCE, [(0, 1)], {}),
    "a row, closed": (Op.ALL_GATHER, [ROW], dict.fromkeys([(0, 1), (1, 2), (2, 3), (0, 3)], 750.0)),
    "twice round": (
        Op.ALL_REDUCE, [ROW], dict.fromkeys([(0, 1), (1, 2), (2, 3), (0, 3)], 1500.0),
    ),
    "a column, closed": (
        Op.REDUCE_SCATTER, [COLUMN], dict.fromkeys([(0, 4), (4, 8), (8, 12), (0, 12)], 750.0),
    ),
    "two chips": (Op.ALL_GATHER, [(0, 2)], {(0, 1): 1000.0}),
    "a pair": (Op.PERMUTE, [(0, 2)], {(0, 1): 1000.0}),
    "a pair over the edge": (Op.PERMUTE, [(0, 6)], {(0, 3): 1000.0}),
    "a pair two links away": (Op.PERMUTE, [(0, 10)], {(0, 4): 1000.0, (4, 5): 1000.0}),
    "everybody to everybody": (Op.ALL_TO_ALL, [(0, 2)], {(0, 1): 1000.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bytes_over_links(name: str) -> None:
    op, groups, expected = CASES[name]
    traffic = LinkTraffic()
    traffic.add(op, 1000.0, groups, TRN1)
    assert dict(traffic.links) == expected
    assert traffic.network == 0


def test_what_leaves_an_instance_goes_over_the_network() -> None:
    traffic = LinkTraffic()
    traffic.add(Op.PERMUTE, 10.0, [(0, 32), (0, 2), (32, 34)], TRN1)
    assert (traffic.network, dict(traffic.links)) == (10.0, {(0, 1): 10.0, (16, 17): 10.0})


@pytest.mark.parametrize(
    "target",
    ["inf1.24xlarge", "inf2.48xlarge", "trn1.32xlarge", "trn2-ultraserver",
     "trn3-gen1-ultraserver"],
)  # fmt: skip
@given(data=st.data())
def test_routes_are_shortest_ways_over_links(target: str, data: st.DataObject) -> None:
    topology = Machine.create(target).topology
    chips = st.integers(0, topology.chips - 1)
    a, b = data.draw(chips), data.draw(chips)
    links = list(route(topology, a, b))
    assert len(links) == topology.distance(a, b)
    assert all(other in topology.neighbours(chip) for chip, other in links)
    assert ends(links) == ({a, b} if a != b else set())


def ends(links: Sequence[tuple[int, int]]) -> set[int]:
    """Chips at which an odd number of links meet."""
    odd: set[int] = set()
    for link in links:
        odd ^= set(link)
    return odd
