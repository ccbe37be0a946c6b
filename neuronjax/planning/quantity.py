"""One value of a hardware record, replaced by what somebody wrote: a number, a factor, a unit."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from typing import Any

from neuronjax.errors import ConfigurationError, quoted

UNITS: Mapping[str, float] = {
    **{f"{prefix}iB": 1 << 10 * power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": 10 ** (3 * power) for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}Hz": 10 ** (3 * power) for power, prefix in enumerate("kMGT", 1)},
}
_NUMBER = r"(\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})"
_WITH_UNIT = re.compile(rf"\s*{_NUMBER}\s*(\w+)(?:/s)?\s*", re.ASCII)
_FACTOR = re.compile(rf"\s*x\s*{_NUMBER}\s*", re.ASCII)

_MAY_BE_ZERO = ("_ns", "_cycles")
"""Ends of the names of times, which may be nothing; counts, rates and shares are divided by."""
_GREATEST = 1e24
_ROUNDED = 1e-6
"""A large whole number, such as a rate, may be off by so much of itself to become whole."""


def replacement(old: Any, value: Any, where: str) -> Any:
    """A value of the kind of `old`: a member, a flag, a text, or a number as `old` may be one.

    ConfigurationError: of another kind, not finite, negative, zero where something is divided by
    it, or not whole where things are counted.
    """
    if isinstance(old, enum.Enum):
        return _member(old, value, where)
    if isinstance(old, bool | str):
        if type(value) is not type(old):
            raise _refusal(old, value, where)
        return value
    return _number(old, value, where)


def _refusal(old: Any, value: Any, where: str) -> ConfigurationError:
    return ConfigurationError(f"{where} is {old!r}; {quoted(value)} cannot replace it.")


def _member(old: enum.Enum, value: Any, where: str) -> enum.Enum:
    try:
        return type(old)(value)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in type(old))
        raise ConfigurationError(f"{where}={quoted(value)}: choose from {allowed}.") from None


def _number(old: Any, value: Any, where: str) -> float:
    number = _parse_number(old, value, where) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise _refusal(old, value, where)
    least_is_zero = not old or any(part.endswith(_MAY_BE_ZERO) for part in where.split("."))
    if not (number >= 0 if least_is_zero else number > 0) or number > _GREATEST:
        least = "at least 0" if least_is_zero else "greater than 0"
        raise ConfigurationError(f"{where}={quoted(value)}: it must be finite and {least}.")
    if not isinstance(old, int):
        return number
    whole = round(number)
    if not math.isclose(whole, number, rel_tol=_ROUNDED):
        raise ConfigurationError(f"{where}={quoted(value)}: it must be a whole number.")
    return whole


def _parse_number(old: Any, text: str, where: str) -> float:
    """A factor on the number that is there, or a number with a unit."""
    factor = _FACTOR.fullmatch(text)
    if factor:
        return float(old or 0) * float(factor[1])
    sized = _WITH_UNIT.fullmatch(text)
    if sized and sized[2] in UNITS:
        return float(sized[1]) * UNITS[sized[2]]
    raise ConfigurationError(
        f'{where}={quoted(text)} is not a number; write a number, a factor such as "x2", or a '
        f"number with one of the units {', '.join(UNITS)}."
    )
