"""What work costs: sums done by hand, interruptions by simulation, and the command."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import date

import pytest

from neuronjax.cli import main as cli
from neuronjax.machine.instances import find_instance
from neuronjax.planning.cost import ON_DEMAND, Purchase, Rival, cost
from neuronjax.planning.prices import KINDS, price_for, published_prices
from neuronjax.planning.sweep import Estimating, Grid, Sweep, sweep
from neuronjax.planning.workload import load

STACK = "tests.planning.programs:stack"


@pytest.fixture(scope="module")
def swept() -> Sweep:
    """A machine with a price on demand, one of capacity blocks and one without any."""
    grid = Grid(targets=["trn1.2xlarge", "trn2.3xlarge", "trn2u.48xlarge"], batches=[64, 512])
    return sweep(Estimating(factory=load(STACK, {"layers": 2})), grid)


def test_prices_that_are_shipped_say_whose_they_are() -> None:
    for target, prices in published_prices().items():
        assert find_instance(target).name == target
        assert [price.kind for price in prices] == sorted(
            {price.kind for price in prices}, key=KINDS.index
        )
        costs = [price.usd_per_hour for price in prices]
        assert costs == sorted(costs, reverse=True)  # a commitment costs less
        for price in prices:
            assert price.region
            assert price.source
            assert date(2025, 12, 1) <= date.fromisoformat(price.date) <= date(2026, 11, 28)
    assert price_for("trn1.2xlarge", None, {}).usd_per_hour == 1.34375  # type: ignore[union-attr]
    block = price_for("trn2.48xlarge", None, {})
    assert (block.kind, block.usd_per_hour) == ("capacity block", 35.7608)  # type: ignore[union-attr]
    assert price_for("trn2u.48xlarge", None, {}) is None


def test_a_million_tokens(swept: Sweep) -> None:
    half = Purchase(name="reserved", discount=0.5)
    rival = Rival(name="gpu", usd_per_hour=3.6, rate=1000.0)
    found = cost(swept, amount=1e6, purchases=[ON_DEMAND, half], rivals=[rival], utilisation=0.5)
    assert found.unit == "tokens"
    offers = {offer.label: offer for offer in found.offers}
    assert [(bill.hours, bill.usd) for bill in offers["gpu"].bills] == [(2e3 / 3600, 2.0)]
    for point in swept.points[:2]:
        estimate = point.estimate
        assert estimate is not None
        hours = 2e6 / estimate.tokens * estimate.step_seconds / 3600  # type: ignore[operator]
        bills = offers[point.label].bills
        names = [bill.purchase for bill in bills]
        assert names == ["on demand", "reserved for a year", "reserved"]
        per_hour = [1.34375, 0.82681, 1.34375 / 2]
        assert [bill.usd for bill in bills] == pytest.approx([usd * hours for usd in per_hour])
    (block,) = offers["trn2.3xlarge b64"].bills
    assert block.purchase == "capacity block"
    assert block.usd == pytest.approx(2.235 * block.hours)
    assert [line.partition(":")[0] for line in found.without] == [
        "trn2u.48xlarge b64", "trn2u.48xlarge b512",
    ]  # fmt: skip
    assert any("(https://aws.amazon.com/ec2/capacityblocks" in line for line in found.sources)
    costs = [offer.cheapest.usd for offer in found.offers]
    assert costs == sorted(costs)
    assert found.offers[0].label in found.advice[0]
    assert any("uses 1 of 4 cores" in line for line in found.advice)


def test_steps_of_a_run(swept: Sweep) -> None:
    found = cost(swept, amount=3600, steps=True)
    seconds = {p.label: p.estimate.step_seconds for p in swept.points if p.estimate}
    for offer in found.offers:
        assert offer.bills[0].hours == pytest.approx(seconds[offer.label])


def test_interruptions_take_the_time_of_a_simulation() -> None:
    spot = Purchase(
        name="spot", interruptions_per_day=2, restart_hours=0.25, checkpoint_hours=0.5
    )  # fmt: skip
    chance, instances, work = random.Random(0), 3, 2000.0
    done = elapsed = 0.0
    while done < work:
        until = chance.expovariate(2 / 24 * instances)
        done += max(0.0, until - chance.uniform(0, 0.5))
        elapsed += until + 0.25
    assert spot.hours(work, instances) == pytest.approx(elapsed, rel=0.03)
    assert spot.hours(work, 1) < spot.hours(work, 2)


def test_what_is_never_done(swept: Sweep) -> None:
    spot = Purchase(name="spot", interruptions_per_day=200, checkpoint_hours=1.0)
    found = cost(swept, amount=10, purchases=[spot])
    assert "interruptions take all of the time" in found.advice[-1]
    assert "never done" in str(found)
    bills = [bill for offer in json.loads(found.to_json())["offers"] for bill in offer["bills"]]
    assert [bill["usd"] for bill in bills if bill["purchase"] == "spot"] == [None, None]


@pytest.fixture
def out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setattr("jax.config.update", lambda *_: None)  # this process has its platforms

    def run(*arguments: str) -> tuple[int, str]:
        try:
            code = cli.main(["cost", STACK, "--layers=1", *arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_command(out: Callable[..., tuple[int, str]]) -> None:
    code, text = out(
        "--targets=trn1.2xlarge,inf2.xlarge", "--batch=64", "--spot=60", "--interruptions=1",
        "--reserved=40", "--versus=p4d.24xlarge=32.77,1e6",
    )  # fmt: skip
    assert code == 0
    assert "1,000,000 tokens of" in text
    for words in ("on demand", "reserved (-40%)", "spot (-60%)", "p4d.24xlarge", "Cheapest:"):
        assert words in text
    assert "price: inf2.xlarge $0.7582/h (AWS Price List, on demand, us-east-1, 2026-07-20)" in text
    code, text = out("--targets=trn2u.48xlarge", "--batch=64")
    assert code == 1
    assert "AWS publishes no price for it; give --price" in text


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--versus=p4d", "NAME=USD,RATE"),
        ("--versus=p4d=1,fast", "'fast' is not a number greater than 0"),
        ("--spot=120", "'120' is not a percentage"),
        ("--utilisation=0", "'0' is not a percentage"),
        ("--steps=0", "is not a whole number"),
        ("--prices=none.toml", "none.toml"),
    ],
)
def test_refused(out: Callable[..., tuple[int, str]], argument: str, words: str) -> None:
    code, text = out(argument)
    assert (code, words in text) == (2, True), text
