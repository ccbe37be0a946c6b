"""How many times its roofline a program takes, for kinds whose plans were once far from it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.conformance.real_sizes.checks import Estimated
from tests.conformance.real_sizes.kind import Choice
from tests.conformance.real_sizes.program import SizedProgram
from tests.conformance.real_sizes.worker import answer

OLD, NEW = "trn1.2xlarge", ("trn2.3xlarge", "trn3-gen1-ultraserver")


class Row(NamedTuple):
    """A program, and how many times its roofline it takes at most on newer machines."""

    kind: str
    choices: dict[str, Choice]
    most: float


def weight_gradient(batch: int, pixels: int, channels: int, features: int, **others: Choice) -> Row:
    """Of a convolution."""
    given: dict[str, Choice] = {
        "batch": batch, "pixels": pixels, "channels": channels, "features": features,
        "kernel": 3, "stride": 2, "dilation": 1, "groups": 1, "layout": "NHWC", "wrt": "weight",
        "dtype": "bfloat16",
    }  # fmt: skip
    return Row("convolution", given | others, 12)


def narrow_groups(channels: int, groups: int, kernel: int, wrt: str, most: float) -> Row:
    """A convolution of an image of 512 by 512 pixels, by its groups."""
    given: dict[str, Choice] = {
        "batch": 1, "pixels": 512, "channels": channels, "features": channels, "kernel": kernel,
        "stride": 1, "dilation": 1, "groups": groups, "layout": "NHWC", "wrt": wrt,
        "dtype": "bfloat16",
    }  # fmt: skip
    return Row("convolution_of_groups", given, most)


def sums_of_segments(segments: int, width: int, dtype: str, most: float) -> Row:
    """Of rows that the Tensor engine adds up."""
    given: dict[str, Choice] = {
        "rows": 16_384, "segments": segments, "width": width, "how": "sum", "dtype": dtype,
    }  # fmt: skip
    return Row("sums_of_segments", given, most)


def loss(rows: int, words: int, most: float = 8, **others: Choice) -> Row:
    """Losses over a large vocabulary."""
    given: dict[str, Choice] = {
        "rows": rows, "words": words, "form": "gathered", "gradient": False, "dtype": "float32",
    }  # fmt: skip
    return Row("loss", given | others, most)


def best(rows: int, width: int, dtype: str) -> Row:
    """The 50 greatest of each row."""
    return Row("best", {"rows": rows, "width": width, "k": 50, "dtype": dtype}, 10)


def place_of_greatest(rows: int, width: int, dtype: str) -> Row:
    """What a server looks for after every token."""
    return Row("rowwise", {"rows": rows, "width": width, "what": "argmax", "dtype": dtype}, 10)


ROWS = (
    weight_gradient(1, 1024, 3, 64, kernel=7),
    weight_gradient(1, 1024, 3, 64, kernel=7, stride=1),
    weight_gradient(1, 1024, 3, 64, kernel=7, stride=1, dtype="float32"),
    weight_gradient(8, 224, 3, 32),
    weight_gradient(8, 224, 3, 32, stride=1),
    weight_gradient(8, 224, 3, 32, dtype="float32"),
    weight_gradient(1, 512, 256, 160),
    weight_gradient(8, 56, 256, 160, kernel=1),
    narrow_groups(64, 64, 7, "none", 35),
    narrow_groups(64, 4, 3, "weight", 10),
    narrow_groups(64, 4, 3, "none", 20),
    sums_of_segments(64, 768, "float32", 15),
    sums_of_segments(64, 768, "bfloat16", 30),
    sums_of_segments(1000, 768, "float32", 20),
    loss(64, 262_144),
    loss(8, 262_144, 12, gradient=True, dtype="bfloat16"),
    loss(64, 50_257, 8, gradient=True, dtype="bfloat16"),
    best(64, 262_144, "float32"),
    place_of_greatest(64, 262_144, "bfloat16"),
    place_of_greatest(8, 262_144, "float32"),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind} {[*row.choices.values()]}")
def test_plans_are_near_the_roofline(row: Row) -> None:
    old = _estimated(row, OLD)
    for machine in NEW:
        new = _estimated(row, machine)
        assert new.ratio <= row.most, machine
        assert new.time_ns <= old.time_ns, machine


def _estimated(row: Row, machine: str) -> Estimated:
    estimate = answer(SizedProgram(row.kind, row.choices, machine))
    assert isinstance(estimate, Estimated), estimate
    return estimate
