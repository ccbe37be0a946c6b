"""The checks that a run makes, and how their findings are reported."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neuronjax.errors import (
    AccumulationError,
    ExecutionError,
    OverwrittenError,
    RaceError,
    UninitialisedError,
)


class Kind(enum.Enum):
    """The kind of a finding."""

    UNINITIALISED = "uninitialised"
    OVERWRITTEN = "overwritten"
    ACCUMULATION = "accumulation"
    RACE = "race"


_ERRORS: Mapping[Kind, type[ExecutionError]] = {
    Kind.UNINITIALISED: UninitialisedError,
    Kind.OVERWRITTEN: OverwrittenError,
    Kind.ACCUMULATION: AccumulationError,
    Kind.RACE: RaceError,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """An error that a check has detected, with the rank and the paths of the instructions."""

    kind: Kind
    rank: int
    paths: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.message}"


def fail(finding: Finding) -> None:
    """Ends the run at its first finding."""
    raise _ERRORS[finding.kind](str(finding))


@dataclass(frozen=True, slots=True)
class Checks:
    """Which checks a run makes. `report` is called once per finding and set of instructions.

    `uninitialised` detects reads of bytes that nothing has written, or that another buffer has
    overwritten. `histories` tells the two apart where buffers share memory; without it a byte that
    another buffer has written counts as overwritten. Races can only occur, and are only detected,
    in dataflow order.
    """

    uninitialised: bool = True
    histories: bool = False
    accumulation: bool = True
    races: bool = True
    report: Callable[[Finding], None] = fail


NO_CHECKS = Checks(uninitialised=False, accumulation=False, races=False)
"""No checks at all, for speed."""
