"""A record gives the same run again, bit by bit, up to any instruction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neuronjax.emulate.checks import Checks
from neuronjax.emulate.core import DataflowOrder, Order, ProgramOrder
from neuronjax.emulate.element_types import Rounding
from neuronjax.emulate.record import Replay, digest, record
from neuronjax.errors import RaceError, RecordError
from neuronjax.program.text import parse
from tests.emulate.chain import chained
from tests.emulate.programs import CASES, golden
from tests.emulate.test_dataflow import TWO_QUEUES, X

ORDERS: list[Order] = [ProgramOrder(), DataflowOrder(4), DataflowOrder(2, adversarial=True)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", ["all_reduce", "attention_mask", "control", "rms_norm"])
def test_replay(name: str, order: Order, tmp_path: Path) -> None:
    arguments = CASES[name].arguments(np.random.default_rng(1))
    rounding = Rounding(mode="stochastic", seed=5)
    results = record(
        tmp_path / "run.npz", chained(golden(name)), arguments, order=order,
        host=lambda _, sources: [source + 1 for source in sources], rounding=rounding,
    )  # fmt: skip
    replay = Replay.load(tmp_path / "run.npz")
    assert replay.order == order
    assert replay.rounding == rounding
    assert digest(replay.run().results()) == digest(results) == replay.digest


def test_replay_stops_on_the_way(tmp_path: Path) -> None:
    arguments = CASES["control"].arguments(np.random.default_rng(1))
    path = tmp_path / "run.npz"
    record(path, golden("control"), arguments, host=lambda _, sources: sources)
    replay = Replay.load(path)
    cache = arguments[0]["cache"]
    # Load the register, compare, copy the row at 250: the third instruction.
    np.testing.assert_array_equal(replay.buffer("state", to=3), cache[250])
    np.testing.assert_array_equal(replay.buffer("layer/row", to=5)[0], cache[250])
    np.testing.assert_array_equal(replay.buffer("state"), cache[0])


def test_a_run_that_failed_fails_again(tmp_path: Path) -> None:
    program = parse(TWO_QUEUES.replace("slots 2", "slots 1"))
    order, checks = DataflowOrder(0), Checks(uninitialised=False)
    with pytest.raises(RaceError) as first:
        record(tmp_path / "run.npz", program, [{"x": X}], order=order, checks=checks)
    replay = Replay.load(tmp_path / "run.npz")
    assert replay.digest is None
    with pytest.raises(RaceError) as second:
        replay.run(checks=checks)
    assert str(first.value) == str(second.value)


def test_other_results_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    record(path, parse(TWO_QUEUES), [{"x": X}])
    with np.load(path) as archive:
        arrays = dict(archive)
    changed = arrays["argument/0/x"].copy()
    changed[0] ^= 1
    np.savez(path, **{**arrays, "argument/0/x": changed})
    with pytest.raises(RecordError, match="differ from the recorded ones"):
        Replay.load(path).run()


def test_a_damaged_record(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    path.write_bytes(b"nonsense")
    with pytest.raises(RecordError, match="cannot be read as a record"):
        Replay.load(path)


def test_a_record_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none.npz cannot be opened \(No such file or directory"):
        Replay.load(tmp_path / "none.npz")
