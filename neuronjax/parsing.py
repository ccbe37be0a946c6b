"""Parses numbers in user input, strictly."""

from __future__ import annotations

import math


def parse_whole(text: str) -> int | None:
    """The number in decimal digits; ``None`` for other text, or 20 digits and more."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def parse_number(text: str) -> float | None:
    """A number in digits with at most one point; ``None`` for other text, or if it is too long."""
    digits = text.replace(".", "", 1)
    return float(text) if digits.isascii() and digits.isdecimal() and len(text) < 20 else None


def parse_float(text: str) -> float:
    """The number that Python's `float` reads; NaN, which lies within no bounds, for other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan
