"""Faults that can be injected, and their syntax.

    NEURONJAX_FAULTS="core_dies core=3 step=10 program=jit_step; slow_link axis=row factor=4"

A fault is its name and ``field=value`` words; semicolons stand between faults. A step is a run of a
program whose name matches ``program`` on ``core``, counted from 1. Status names and numbers of the
errors are those of ``nrt_status.h``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from neuronjax.errors import ConfigurationError, quoted
from neuronjax.parsing import parse_number, parse_whole


@dataclass(frozen=True, kw_only=True)
class AtStep:
    """A fault at one run of a program on a core."""

    core: int = 0
    """A device's id."""
    step: int = 1
    """Number of the run, from 1."""
    program: str = "*"
    """Pattern of program names, with ``*`` and ``?``."""

    @property
    def needs_others(self) -> bool:
        """Whether it can only strike a program over several cores."""
        return False


class CoreDies(AtStep):
    """The run fails with NRT_EXEC_HW_ERR_NC_UE (1202), and so does every later one on the core."""


class CollectiveHangs(AtStep):
    """The core never reaches a collective: a run of several cores ends with NRT_TIMEOUT (5) after
    NEURON_RT_EXEC_TIMEOUT seconds."""

    @property
    def needs_others(self) -> bool:
        return True


class OutOfMemory(AtStep):
    """There is no memory for the results of the run: NRT_RESOURCE (4)."""


@dataclass(frozen=True, kw_only=True)
class BitFlip(AtStep):
    """Bits of a memory flip: in HBM those of an argument, permanently; in SBUF those of a tile
    during the run (executor ``engine``); on a link those of a result of several cores."""

    memory: str = "hbm"
    """``hbm``, ``sbuf`` or ``link``."""
    bits: int = 1
    """Number of bits."""
    seed: int = 0
    """Seed of the choice of bits."""
    detected: bool = False
    """``1``: the hardware detects it, and the run fails with NRT_EXEC_HW_ERR_HBM_UE (1201), …_NC_UE
    (1202) or …_DMA_ABORT (1203); ``0``: the values are wrong."""

    MEMORIES: ClassVar[tuple[str, ...]] = ("hbm", "sbuf", "link")

    @property
    def needs_others(self) -> bool:
        return self.memory == "link"


@dataclass(frozen=True, kw_only=True)
class SlowCore:
    """The engines of a core are slower, in simulated time."""

    core: int = 0
    """A device's id."""
    factor: float = 2.0
    """The factor, at least 1, by which its clocks are divided."""


@dataclass(frozen=True, kw_only=True)
class SlowLink:
    """A link between chips, and with it its axis of the topology, is slower, in simulated time."""

    axis: str = "row"
    """The axis' name in ``neuronjax ls --topology``."""
    factor: float = 2.0
    """The factor, at least 1, by which its bandwidth is divided."""


Fault = AtStep | SlowCore | SlowLink

FAULTS: Mapping[str, type[Fault]] = {
    "core_dies": CoreDies,
    "collective_hangs": CollectiveHangs,
    "bit_flip": BitFlip,
    "out_of_memory": OutOfMemory,
    "slow_core": SlowCore,
    "slow_link": SlowLink,
}
_NAMES = {kind: name for name, kind in FAULTS.items()}


def parse_faults(variable: str, text: str) -> tuple[Fault, ...]:
    """Parses faults. ConfigurationError: a fault is unknown, or a field has an invalid value."""
    parts = [part.split() for part in text.split(";")]
    return tuple(_fault(variable, words) for words in parts if words)


def format_fault(fault: Fault) -> str:
    """A fault as text, without fields at their defaults."""
    words = [_NAMES[type(fault)]]
    for field in fields(fault):
        value = getattr(fault, field.name)
        if value != field.default:
            words.append(f"{field.name}={int(value) if isinstance(value, bool) else value}")
    return " ".join(words)


def _fault(variable: str, words: list[str]) -> Fault:
    kind = FAULTS.get(words[0])
    if kind is None:
        raise ConfigurationError(
            f"{variable}: there is no fault {quoted(words[0])}; choose one of {', '.join(FAULTS)}."
        )
    known = {field.name: field for field in fields(kind)}
    given: dict[str, Any] = {}
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name not in known or name in given:
            raise ConfigurationError(
                f"{variable}: {words[0]} cannot have {quoted(word)}; it takes each of "
                f"{', '.join(f'{field}=' for field in known)} once at most."
            )
        given[name] = _value(f"{variable}: {words[0]} {name}", known[name], value)
    return kind(**given)


def _value(where: str, field: dataclasses.Field[Any], text: str) -> Any:
    read, allowed = _VALUES.get(field.name, _BY_TYPE[type(field.default)])
    value = read(text)
    if value is None:
        raise ConfigurationError(f"{where}={quoted(text)} must be {allowed}.")
    return value


def _between(least: int, most: int) -> Callable[[str], int | None]:
    def read(text: str) -> int | None:
        number = parse_whole(text)
        return number if number is not None and least <= number <= most else None

    return read


def _factor(text: str) -> float | None:
    number = parse_number(text)
    return number if number is not None and 1 <= number <= _MOST_SLOWER else None


_MOST_SLOWER = 1e6
_Reader = tuple[Callable[[str], Any], str]
_BY_TYPE: Mapping[type, _Reader] = {
    int: (_between(0, (1 << 31) - 1), "a whole number"),
    float: (_factor, f"a number from 1 to {_MOST_SLOWER:g}"),
    str: (lambda text: text or None, "a name"),
    bool: ({"0": False, "1": True}.get, "0 or 1"),
}
_VALUES: Mapping[str, _Reader] = {
    "step": (_between(1, (1 << 31) - 1), "a whole number of at least 1"),
    "bits": (_between(1, 64), "a whole number from 1 to 64"),
    "memory": (
        {name: name for name in BitFlip.MEMORIES}.get, f"one of {', '.join(BitFlip.MEMORIES)}"
    ),
}  # fmt: skip
"""How the fields of faults are read: by type, some by name."""
