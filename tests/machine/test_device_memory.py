"""What the runtime takes beside tensors, beside what public out-of-memory reports say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from neuronjax.machine.chips import CHIPS
from neuronjax.machine.device_memory import (
    CODE,
    COLLECTIVES,
    PAGES,
    RINGS,
    Demand,
    runtime_memory,
)
from neuronjax.machine.specs import GIB, MIB

INF2, TRN2 = CHIPS["inferentia2"], CHIPS["trainium2"]


@dataclass(frozen=True)
class Report:
    """What was loaded on a core of Inferentia2, and the MiB of each category."""

    what: str
    demand: Demand
    reported: Mapping[str, float]

    def predicted(self, kind: str) -> tuple[float, float, float]:
        """Low end, value and high end in MiB; microcode is code in the reports."""
        taken = runtime_memory(INF2.core, self.demand)[kind]
        own = INF2.microcode_bytes if kind == CODE else 0
        nbytes, low, high = ((value + own) / MIB for value in taken)
        return low, nbytes, high


REPORTS = {
    "49": Report(
        "Llama-2-7B over two cores, ten programs",
        Demand(io_bytes=8.216 * GIB, scratch_bytes=1, instructions=316_368, has_collectives=True,
               programs=10),
        {CODE: 233.7, RINGS: 6.518 * 1024, COLLECTIVES: 518.0, PAGES: 512.0},
    ),
    "92": Report(
        "Llama-3-70B over twelve cores, the second program half loaded (assumed)",
        Demand(io_bytes=13.17 * GIB, scratch_bytes=1, instructions=4_892_776, has_collectives=True,
               programs=1.5),
        {CODE: 482.4, RINGS: 1.471 * 1024, COLLECTIVES: 367.0, PAGES: 512.0},
    ),
}  # fmt: skip
"""By the number of the thread at transformers-neuronx. Instructions are those of a token of the
first and of a prompt of the second here."""


@pytest.mark.parametrize("name", REPORTS)
def test_every_category_is_within_a_quarter_of_the_report(name: str) -> None:
    report = REPORTS[name]
    for kind, expected in report.reported.items():
        low, nbytes, high = report.predicted(kind)
        assert nbytes == pytest.approx(expected, rel=0.25), kind
        assert 0.99 * low <= expected <= 1.01 * high, kind
    total = sum(report.predicted(kind)[1] for kind in report.reported)
    assert total == pytest.approx(sum(report.reported.values()), rel=0.1)


def test_engines_that_make_descriptors_need_less_rings() -> None:
    demand = Demand(io_bytes=8 * GIB, programs=4)
    static, generated = (runtime_memory(chip.core, demand)[RINGS] for chip in (INF2, TRN2))
    assert generated.nbytes < static.nbytes / 2
    assert generated.low == 0


@pytest.mark.parametrize(
    ("scratch", "pages"), [(1, 512 * MIB - 1), (512 * MIB, 0), (513 * MIB, 511 * MIB)]
)
def test_scratchpads_have_whole_pages(scratch: int, pages: int) -> None:
    taken = runtime_memory(INF2.core, Demand(io_bytes=0, scratch_bytes=scratch))
    assert (taken[PAGES].nbytes if pages else len(taken)) == pages


def test_nothing_takes_nothing() -> None:
    assert runtime_memory(INF2.core, Demand(io_bytes=0)) == {}
