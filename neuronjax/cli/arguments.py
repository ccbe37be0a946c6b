"""Types of arguments that several commands share: numbers within bounds."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from neuronjax.errors import quoted
from neuronjax.parsing import parse_float, parse_whole


def whole(least: int, most: int = 1 << 40) -> Callable[[str], int]:
    """A whole number from `least` to `most`."""

    def read(text: str) -> int:
        number = parse_whole(text)
        if number is None or not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"{quoted(text)} is not a whole number from {least} to {most}"
            )
        return number

    return read


port = whole(1, (1 << 16) - 1)


def seconds(least: float) -> Callable[[str], float]:
    """A number of seconds from `least` to a year."""

    def read(text: str) -> float:
        value = parse_float(text)
        if not least <= value <= _YEAR:
            raise argparse.ArgumentTypeError(
                f"{quoted(text)} is not a number of seconds of at least {least:g}"
            )
        return value

    return read


_YEAR = 365 * 86_400.0


def amount(text: str) -> float:
    """A finite number above 0."""
    value = parse_float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a number greater than 0")
    return value


def percent(text: str) -> float:
    """A part of a whole, given as a number above 0 and up to 100."""
    value = parse_float(text.removesuffix("%"))
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not a percentage above 0 and up to 100"
        )
    return value / 100
