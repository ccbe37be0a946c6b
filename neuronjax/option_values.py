"""Parses the values of options: words, numbers, switches, addresses and lists of cores.

Each parser takes the name of a variable and its text, and raises ``ConfigurationError``, with both
in the message, if the variable may not have that value.
"""

from __future__ import annotations

from collections.abc import Callable

from neuronjax.errors import ConfigurationError, VisibleCoresError, quoted
from neuronjax.parsing import parse_whole


def choice(*allowed: str) -> Callable[[str, str], str]:
    def parse(variable: str, text: str) -> str:
        if text not in allowed:
            raise refused(variable, text, f"one of {', '.join(allowed)}")
        return text

    return parse


def refused(variable: str, text: object, allowed: str) -> ConfigurationError:
    return ConfigurationError(f"{variable}={quoted(text)} is not allowed; it must be {allowed}.")


def nonempty(variable: str, text: str) -> str:
    if not text.strip():
        raise refused(variable, text, "a name, not empty")
    return text.strip()


def names_of(variable: str, text: str) -> tuple[str, ...]:
    return tuple(nonempty(variable, part) for part in text.split(",")) if text else ()


def whole_number(least: int, most: int, allowed: str) -> Callable[[str, str], int]:
    def parse(variable: str, text: str) -> int:
        number = parse_whole(text.strip())
        if number is None or not least <= number <= most:
            raise refused(variable, text, allowed)
        return number

    return parse


positive = whole_number(1, (1 << 31) - 1, "a whole number of at least 1")
port_number = whole_number(1, (1 << 16) - 1, "a port from 1 to 65535")
logical_cores = whole_number(1, 2, "1 or 2 (physical cores per logical core)")
seed = whole_number(0, (1 << 32) - 1, "a whole number below 2^32")


def switch(variable: str, text: str) -> bool:
    if text not in ("0", "1"):
        raise refused(variable, text, "0 or 1")
    return text == "1"


process_number = whole_number(0, (1 << 16) - 1, "the number of a process, from 0 on")


def address_of(variable: str, text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host:
        raise refused(variable, text, "an address and a port, such as 10.0.0.1:46820")
    port_number(variable, port)
    return text


def counts_of(variable: str, text: str) -> tuple[int, ...]:
    return tuple(positive(variable, part.strip()) for part in text.split(","))


MOST_CORES = 1 << 16
"""More logical cores than any machine has; longer lists are refused before they are expanded."""


def parse_core_list(variable: str, text: str) -> tuple[int, ...]:
    """``"0-3"`` or ``"0,2,5-6"`` as core ids.

    Raises:
      VisibleCoresError: malformed, repeated, or more than any machine has.
    """
    cores: dict[int, None] = {}
    for part in text.split(","):
        for core in _core_range(variable, text, part.strip()):
            if core in cores:
                raise VisibleCoresError(
                    f"{variable}={quoted(text)} overlaps: core {core} occurs twice."
                )
            cores[core] = None
    return tuple(cores)


def _core_range(variable: str, text: str, part: str) -> range:
    first, dash, last = part.partition("-")
    begin, end = parse_whole(first), parse_whole(last if dash else first)
    if begin is None or end is None:
        raise VisibleCoresError(
            f"{variable}={quoted(text)} is malformed at {quoted(part)}; write core ids and "
            'ranges such as "0-3" or "0,2,5-6".'
        )
    if end < begin:
        raise VisibleCoresError(f"{variable}={quoted(text)}: the range {part!r} runs backwards.")
    if end >= MOST_CORES:
        raise VisibleCoresError(
            f"{variable}={quoted(text)} names core {end}; no machine has more than {MOST_CORES}."
        )
    return range(begin, end + 1)
