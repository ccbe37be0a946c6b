"""What is looked for while a program runs, and what is done with what is found."""

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
    """What was found."""

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
    """Something wrong that a run came upon: on which rank, at which instructions."""

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
    """Which checks a run makes. `report` gets each finding once for its instructions.

    `uninitialised` is about reads of what nothing has written, or another buffer in the same bytes.

    Races are looked for in dataflow order only: program order has none.
    """

    uninitialised: bool = True
    accumulation: bool = True
    races: bool = True
    report: Callable[[Finding], None] = fail


NO_CHECKS = Checks(uninitialised=False, accumulation=False, races=False)
"""For speed."""
