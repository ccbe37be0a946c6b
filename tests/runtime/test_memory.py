"""HBM accounting and the protection of the host's memory."""

from __future__ import annotations

import re

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from neuronjax.errors import DeviceMemoryError, HostMemoryError
from neuronjax.runtime import memory
from neuronjax.runtime.memory import GIB, HbmLedger, LoadedBytes, MemoryStats, protect_host

MIB = 1 << 20
CORES = 3


def ledger(limit: int = 1000, reserved: int = 100) -> HbmLedger:
    labels = [f"ND 0:NC {core}" for core in range(CORES)]
    return HbmLedger(labels, [limit] * CORES, reserved)


def test_stats_of_a_short_life() -> None:
    book = ledger()
    book.allocate([0, 1], 300)
    book.allocate([0], 500)
    book.free([0], 300)
    book.allocate([0], 0, 350)
    book.allocate([1], 0, 10)
    assert book.stats(0) == MemoryStats(
        bytes_in_use=500,
        peak_bytes_in_use=850,
        bytes_limit=900,
        bytes_reserved=100,
        num_allocs=3,
        largest_alloc_size=500,
    )
    assert book.stats(1).peak_bytes_in_use == 310
    assert book.stats(2) == MemoryStats(0, 0, 900, 100, 0, 0)


def test_limit_is_exact_and_a_refusal_charges_no_core() -> None:
    book = ledger()
    book.allocate([0, 1, 2], 400)
    book.allocate([1], 500)
    with pytest.raises(DeviceMemoryError):
        book.allocate([0, 1, 2], 1)
    assert [book.stats(core).bytes_in_use for core in range(CORES)] == [400, 900, 400]
    book.free([1], 1)
    book.allocate([0, 1, 2], 1)


def test_refusal_has_a_table_by_core_and_advice() -> None:
    book = HbmLedger([f"ND 0:NC {core}" for core in range(12)], [GIB] * 12, 96 * MIB)
    book.allocate([5], 512 * MIB)
    book.load([5], LoadedBytes("step", 3 * MIB, 64 * MIB, rings=5 * MIB, collectives=8 * MIB))
    book.load([5], LoadedBytes("eval", 1 * MIB, 32 * MIB, rings=2 * MIB, collectives=8 * MIB))
    with pytest.raises(DeviceMemoryError) as caught:
        book.allocate([4, 5], 768 * MIB)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("Failed to allocate 0.750GB")
    assert lines[0].endswith("on ND 0:NC 5")
    header, *rows = [re.split(r"\s*\|\s*", line.strip()) for line in lines if "|" in line]
    assert header[-8:] == [
        "TOTAL", "Model Code", "Tensors", "Scratchpad", "Runtime", "DMA Rings", "Collectives",
        "Limit",
    ]  # fmt: skip
    assert [row[0] for row in rows] == [f"ND 0:NC {core}" for core in range(2, 9)]
    # Scratchpad and collectives are shared between programs, code and rings are not.
    full = [
        "691.000MB", "4.000MB", "512.000MB", "64.000MB", "96.000MB", "7.000MB", "8.000MB",
        "1.000GB",
    ]  # fmt: skip
    empty = ["96.000MB", *["0.000B"] * 3, "96.000MB", *["0.000B"] * 2, "1.000GB"]
    assert [row[1:] for row in rows] == [full if row[0] == "ND 0:NC 5" else empty for row in rows]
    for advice in ("batch", "shard", "donate", "NEURONJAX_TARGET"):
        assert advice in lines[-1]


def test_unloaded_program_leaves_the_table() -> None:
    book = ledger()
    key = book.load([0], LoadedBytes("step", code=3, scratchpad=7))
    book.unload([0], key)
    book.unload([0], key)
    with pytest.raises(DeviceMemoryError) as caught:
        book.check([0], 10_000)
    row = next(line for line in str(caught.value).splitlines() if line.startswith("ND 0:NC 0"))
    assert [cell.strip() for cell in row.split("|")][2:5] == ["0.000B"] * 3


CORE_SETS = st.sets(st.integers(0, CORES - 1), min_size=1).map(tuple)


class LedgerLaws(RuleBasedStateMachine):
    """What is in use is the sum of what lives, whatever is refused in between."""

    def __init__(self) -> None:
        super().__init__()
        self.book = ledger()
        self.live: list[tuple[tuple[int, ...], int]] = []
        self.peak = [0] * CORES

    @rule(cores=CORE_SETS, nbytes=st.integers(0, 600))
    def allocate(self, cores: tuple[int, ...], nbytes: int) -> None:
        fits = all(self.in_use(core) + nbytes <= 900 for core in cores)
        try:
            self.book.allocate(cores, nbytes)
        except DeviceMemoryError:
            assert not fits
        else:
            assert fits
            self.live.append((cores, nbytes))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        self.book.free(*self.live.pop(index))

    def in_use(self, core: int) -> int:
        return sum(nbytes for cores, nbytes in self.live if core in cores)

    @invariant()
    def in_use_is_the_sum_of_the_live(self) -> None:
        for core in range(CORES):
            self.peak[core] = max(self.peak[core], self.in_use(core))
            stats = self.book.stats(core)
            assert stats.bytes_in_use == self.in_use(core) <= stats.bytes_limit
            assert stats.peak_bytes_in_use == self.peak[core]


TestLedgerLaws = LedgerLaws.TestCase


@pytest.mark.parametrize(
    ("nbytes", "available", "refused"),
    [
        (memory.HOST_CHECK_BYTES - 1, 0, False),
        (memory.HOST_CHECK_BYTES, 0, True),
        (4 * GIB, 4 * GIB + memory.HOST_RESERVE_BYTES, False),
        (4 * GIB, 4 * GIB + memory.HOST_RESERVE_BYTES - 1, True),
        (1 << 60, None, False),
    ],
)
def test_host_is_protected(
    nbytes: int, available: int | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "host_available_bytes", lambda: available)
    if not refused:
        protect_host(nbytes, "a test")
        return
    with pytest.raises(HostMemoryError, match=r"^a test needs .* GiB .*fewer cores"):
        protect_host(nbytes, "a test")


def test_host_tells_its_available_memory() -> None:
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(file.readline().split()[1]) << 10
    available = memory.host_available_bytes()
    assert available is not None
    assert 0 < available <= total
