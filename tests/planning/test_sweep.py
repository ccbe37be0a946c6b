"""Sweeps: the front, impossible points, prices, the table, the picture."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from neuronjax.errors import ConfigurationError, UnknownTargetError
from neuronjax.planning.kept import FILE, Kept
from neuronjax.planning.plot import html, svg
from neuronjax.planning.prices import price_for, read_prices
from neuronjax.planning.record import Price
from neuronjax.planning.runners import in_processes, on_ray
from neuronjax.planning.sweep import Estimating, Grid, Point, Sweep, pareto, sweep
from neuronjax.planning.workload import load

STACK = "tests.planning.programs:stack"
PRICES = {
    "trn1.2xlarge": (Price(usd_per_hour=1.0),),
    "trn2.3xlarge": (Price(usd_per_hour=3.0, source="a page", date="2026-01-02"),),
}


@pytest.fixture(scope="module")
def found() -> Sweep:
    grid = Grid(targets=list(PRICES), meshes=["core=1", "model=3"], batches=[128, 512])
    return sweep(Estimating(factory=load(STACK), prices=PRICES, layers=2), grid)


def test_every_combination_is_there(found: Sweep) -> None:
    assert [(p.target, p.mesh, p.batch) for p in found.points] == list(
        itertools.product(PRICES, ["core=1", "model=3"], [128, 512])
    )
    for point in found.points:
        if point.mesh == "model=3":
            assert point.estimate is None
            assert "3" in point.error
        else:
            assert point.usable


def test_front_against_all_pairs(found: Sweep) -> None:
    usable = [point for point in found.points if point.usable]
    front = list(found.front)
    assert front
    for point in usable:
        beaten = any(
            other.time_ns <= point.time_ns
            and other.cost <= point.cost
            and (other.time_ns, other.cost) != (point.time_ns, point.cost)
            for other in usable
        )
        assert (point in front) is not beaten
    assert list(pareto(front)) == front


def test_costs(found: Sweep) -> None:
    assert found.cost_unit == "$ per M tokens"
    point = found.points[0]
    assert point.estimate
    expected = 1.0 / 3600 * point.estimate.step_seconds / 128 * 1e6
    assert point.cost == pytest.approx(expected)


def test_without_prices() -> None:
    grid = Grid(targets=["trn2u.48xlarge"], batches=[64])
    alone = sweep(Estimating(factory=load("tests.planning.programs:whole")), grid)
    assert alone.cost_unit == "instance seconds per step"
    assert alone.points[0].cost == pytest.approx(alone.points[0].time_ns * 1e-9)


def test_table_and_json(found: Sweep) -> None:
    text = str(found)
    assert "$ per M tokens" in text
    assert "impossible:" in text
    record = json.loads(found.to_json())
    assert [point["pareto"] for point in record["points"]].count(True) == len(found.front)
    assert record["points"][0]["estimate"]["price"]["usd_per_hour"] == 1.0


def test_picture(found: Sweep) -> None:
    root = ElementTree.fromstring(svg(found))
    circles = [each for each in root.iter() if each.tag.endswith("circle")]
    dots = [each for each in circles if len(each)]
    assert len(dots) == sum(1 for point in found.points if point.estimate)
    assert all(80 <= float(each.attrib["cx"]) <= 670 for each in dots)
    assert all(40 <= float(each.attrib["cy"]) <= 500 for each in dots)
    bars = [each for each in root.iter() if each.get("stroke-width") == "2"]
    assert len(bars) == len(dots)
    for bar, dot in zip(bars, dots, strict=True):
        left, right = map(float, re.fullmatch(r"M(\S+) \S+H(\S+)", bar.get("d", "")).groups())  # type: ignore[union-attr]
        assert 80 <= left < float(dot.attrib["cx"]) < right <= 670
    (line,) = (each for each in root.iter() if each.tag.endswith("polyline"))
    assert len(line.attrib["points"].split()) == len(found.front)


def test_page_has_every_point_in_picture_and_table(found: Sweep) -> None:
    labels = re.findall(r'data-point="([^"]*)"', html(found))
    assert Counter(labels) == {point.label: 2 if point.estimate else 1 for point in found.points}


@pytest.mark.slow
def test_points_side_by_side_are_the_same(found: Sweep) -> None:
    grid = Grid(targets=["trn1.2xlarge"], meshes=["core=1", "model=3"], batches=[128])
    estimating = Estimating(factory=load(STACK), prices=PRICES, layers=2)
    beside = sweep(estimating, grid, runner=in_processes(2))
    assert beside.points == (found.points[0], found.points[2])


def _end_at_one(number: int) -> int:
    if number == 1:
        os._exit(1)
    return number


def test_only_the_row_of_a_process_that_dies_is_lost() -> None:
    assert sorted(in_processes(1)(_end_at_one, [0, 1, 2])) == [(0, 0), (1, None), (2, 2)]
    estimating = Estimating(factory=load(STACK), layers=2)
    grid = Grid(targets=["trn1.2xlarge"], batches=[1, 2])
    lost = sweep(estimating, grid, runner=lambda call, asked: iter([(1, None), (0, None)]))
    assert [point.batch for point in lost.points] == [1, 2]
    assert all("died" in point.error for point in lost.points)


@pytest.mark.parametrize("port", [1, 10**6])
def test_a_cluster_where_nobody_listens(port: int) -> None:
    with pytest.raises(ConfigurationError, match="no Ray cluster answers at"):
        list(on_ray(f"127.0.0.1:{port}")(len, ["a"]))


def test_ray_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match="pip install ray"):
        list(on_ray("local")(len, ["a"]))


def test_points_are_kept_for_the_same_sweep(found: Sweep, tmp_path: Path) -> None:
    """A line that was cut off is estimated again, and another sweep takes none."""
    estimating = Estimating(factory=load(STACK), prices=PRICES, layers=2)
    kept = Kept(tmp_path, estimating, "1")
    for point in found.points:
        kept.add(point)
    file = tmp_path / FILE
    file.write_text(file.read_text()[:-40])
    again = Kept(tmp_path, estimating, "1").points
    assert list(again.values()) == list(found.points[:-1])
    assert Kept(tmp_path, estimating, "2").points == {}
    assert Kept(tmp_path, replace(estimating, layers=3), "1").points == {}


def test_picture_of_nothing() -> None:
    point = Point(target="x", mesh=None, batch=None, dtype=None, error="no")
    text = svg(Sweep(workload="a <b>", points=(point,)))
    ElementTree.fromstring(text)
    assert "nothing could be estimated" in text


def test_prices_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('["TRN1.2xlarge"]\nusd_per_hour = 1.5\ndate = "2026-08-01"\nsource = "page"\n')
    prices = read_prices(file)
    price = Price(usd_per_hour=1.5, date="2026-08-01", source="page")
    assert prices == {"trn1.2xlarge": (price,)}
    assert price_for("trn1.2xlarge", None, prices) == price
    assert price_for("trn1.2xlarge", 9.0, prices) == Price(usd_per_hour=9.0)
    assert price_for("trn2u.48xlarge", None, prices) is None


ROW = '["trn1.2xlarge"]\ndate = "2026-01-02"\nsource = "page"\n'


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("[trn1.2xlarge]\nusd_per_hour = 1", UnknownTargetError, "trn1"),
        ('["trn1.2xlarge"]\nusd_per_hour = 1', ConfigurationError, "lacks date, source"),
        (f"{ROW}usd_per_hour = '1'", ConfigurationError, "usd_per_hour is '1'"),
        (f"{ROW}usd_per_hour = -1", ConfigurationError, "usd_per_hour is -1, but must be"),
        (f"{ROW}usd_per_hour = 0", ConfigurationError, "greater than 0"),
        (f"{ROW}usd_per_hour = nan", ConfigurationError, "usd_per_hour is nan"),
        (f"{ROW}usd_per_hour = true", ConfigurationError, "usd_per_hour is True"),
        (ROW, ConfigurationError, "lacks usd_per_hour"),
        (f"{ROW}usd_per_hour = 1\ncurrency = 'EUR'", ConfigurationError, "in US dollars"),
        (f"{ROW}usd_per_hour = 1\nkind = 'rent'", ConfigurationError, "kind is 'rent', but must"),
        (f"{ROW}usd_per_hour = 1\nregio = 'x'", ConfigurationError, "Did you mean region"),
        (f"{ROW}usd_per_hour = 1".replace("01-02", "13-45"), ConfigurationError, "such as 2026-08"),
        (f"{ROW}usd_per_hour = 1".replace("2026", "2999"), ConfigurationError, "still to come"),
        ('"trn1.2xlarge" = 3', ConfigurationError, "needs usd_per_hour"),
        ("[", ConfigurationError, "not TOML"),
    ],
)  # fmt: skip
def test_refused_prices(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(error, match=words):
        read_prices(file)


def test_no_such_prices(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        read_prices(tmp_path / "none.toml")
