"""Processes that meet, or do not: threads of this process with a store in its memory."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from neuronjax.errors import PeerError
from neuronjax.processes.deadlock import Tag
from neuronjax.processes.root_store import RootStore
from neuronjax.processes.roster import Description, Process, Roster, Store, join

SOON = 0.3
"""Seconds to wait for who does not come."""
AMPLE = 60.0
"""Seconds in which everybody comes, however busy the machine is."""


class MemoryStore:
    """A store for threads."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, seconds: float) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, seconds)
            return self._values.get(key)


def met(
    descriptions: list[dict[str, str]],
    count: int | None = None,
    timeout: float = AMPLE,
    late_timeout: float = AMPLE,
    store: Callable[[int], Store] | None = None,
) -> list[Any]:
    """What comes of processes with these descriptions: rosters or errors."""
    shared = MemoryStore()
    total = count or len(descriptions)

    def meet(index: int) -> Roster | PeerError:
        own = store(index) if store else shared
        try:
            process = Process(index, total, own, timeout, late_timeout)
            return join(process, Description(descriptions[index], cores=[index]))
        except PeerError as error:
            return error

    with ThreadPoolExecutor(len(descriptions)) as pool:
        return list(pool.map(meet, range(len(descriptions))))


def cut(connection: Connection) -> None:
    """Ends a connection as the end of a process does."""
    with socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


def tag(collective: str, program: str = "program f") -> Tag:
    """A message of the first run of a program."""
    return Tag(program, 0, collective)


def close(rosters: list[Roster]) -> None:
    for roster in rosters:
        roster.links.close()


def test_all_know_all_and_can_talk() -> None:
    rosters = met([{"target": "trn2.3xlarge"}] * 3)
    assert [[list(process.cores) for process in roster.descriptions] for roster in rosters] == [
        [[0], [1], [2]]
    ] * 3
    sent = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(True)]
    rosters[2].links.send(0, Tag("program", 1, "all_gather 0", (0, 1)), sent)
    got = rosters[0].links.receive(2, Tag("program", 1, "all_gather 0", (0, 1)), sent)
    for array, expected in zip(got, sent, strict=True):
        np.testing.assert_array_equal(array, expected)
    close(rosters)


@pytest.mark.parametrize("what", ["version of neuronjax", "target", "options of numerics"])
def test_every_process_names_what_they_disagree_about(what: str) -> None:
    errors = met([{what: "one"}, {what: "one"}, {what: "other"}])
    message = f"disagree about the {what}: it is one on process 0 and other on process 2"
    assert [message in str(error) for error in errors] == [True] * 3


def test_another_version_may_say_more_or_less() -> None:
    errors = met([{"target": "a"}, {"target": "a", "colour": "b"}])
    message = "the colour: it is unknown on process 0 and b on process 1"
    assert [message in str(error) for error in errors] == [True] * 2


def test_who_does_not_come_is_named() -> None:
    begin = time.monotonic()
    errors = met([{}] * 2, count=4, timeout=SOON)
    assert time.monotonic() - begin < AMPLE
    message = "each of processes 2, 3 of 4 has not started platform neuron within 0.3 seconds"
    assert [message in str(error) for error in errors] == [True] * 2


def test_who_dies_is_named() -> None:
    waiting, other = met([{}] * 2)
    cut(other.links._peers[0].connection)
    with pytest.raises(PeerError, match="process 1 has died"):
        waiting.links.receive(1, tag("all_reduce"), [])
    with pytest.raises(PeerError, match="process 1 has died"):
        waiting.links.check()
    close([waiting])


def test_who_ends_is_named_when_somebody_waits() -> None:
    waiting, other = met([{}] * 2)
    value = np.ones(3)
    other.links.send(0, tag("first"), [value])
    other.links.close()
    np.testing.assert_array_equal(waiting.links.receive(1, tag("first"), [value])[0], value)
    waiting.links.check()
    with pytest.raises(
        PeerError, match="process 1 has ended, and all_gather 3 of program f waits for it"
    ):
        waiting.links.receive(1, tag("all_gather 3"), [])
    close([waiting])


CYCLES = {
    "two": (((0, 1, "program f"), (1, 0, "program g")), {0, 1}),
    "three": (((2, 1, "program f"), (0, 2, "program f"), (1, 0, "program g")), {0, 1, 2}),
    "two, and one behind them": (
        ((2, 1, "program f"), (0, 1, "program f"), (1, 0, "program g")), {0, 1}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CYCLES)
def test_who_waits_for_each_other_in_different_programs_is_told_soon(name: str) -> None:
    waits, told = CYCLES[name]
    rosters = met([{}] * 3)

    def wait(process: int, other: int, program: str) -> str:
        with pytest.raises(PeerError) as caught:
            rosters[process].links.receive(other, tag("all_reduce 0", program), [])
        rosters[process].links.close()
        return str(caught.value)

    begin = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        errors = [*pool.map(wait, *zip(*waits, strict=True))]
    assert time.monotonic() - begin < AMPLE / 2
    for error in errors:
        assert "All processes must run the same programs" in error
        for process, other, program in waits:
            text = f"process {process} waits for process {other} at all_reduce 0 of {program}"
            assert (text in error) == (process in told)


def test_who_lives_but_does_not_come_is_named_in_time() -> None:
    waiting, other = rosters = met([{}] * 2, late_timeout=SOON)
    with pytest.raises(PeerError, match=r"process 1 lives, .* within 0\.\d+ seconds.*LATE_PEER"):
        waiting.links.receive(1, tag("all_reduce"), [])
    with pytest.raises(PeerError):
        other.links.receive(0, tag("all_reduce"), [])
    close(rosters)


def test_a_store_at_the_address_of_process_0(free_address: str) -> None:
    rosters = met([{}] * 3, store=lambda index: RootStore(free_address, index, AMPLE))
    assert [roster.index for roster in rosters] == [0, 1, 2]
    close(rosters)


def test_an_address_that_is_taken(taken_port: int) -> None:
    with pytest.raises(PeerError, match=f"cannot listen at .*:{taken_port}: Address already"):
        RootStore(f"127.0.0.1:{taken_port}", 0, SOON)


def test_nobody_at_the_address(free_address: str) -> None:
    with pytest.raises(PeerError, match="process 0 does not answer at NEURON_RT_ROOT_COMM_ID="):
        RootStore(free_address, 1, SOON).put("key", "value")
