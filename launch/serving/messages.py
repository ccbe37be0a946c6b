"""What the process with the device and the one with its clients tell each other.

Commands go to the device's process; each that is a `Call` is answered by one `Returned` or
`Raised`. Everything is pickled, and both processes are of one program.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launch.errors import LaunchError
from launch.serving.requests import FinishReason, Output, Request


class Submit(NamedTuple):
    """Queue a request. Its tokens come in `Outputs`, or it is `Refused`."""

    request: Request


class Cancel(NamedTuple):
    """End a request early, if it is under way; nothing more is told of it."""

    request_id: str
    reason: FinishReason


class Call(NamedTuple):
    """Do something of which the result is wanted."""

    number: int  # no other call has it
    wanted: "Compute | AskLoad | CheckAdapter"


class Withdraw(NamedTuple):
    """Nobody waits for a call's result any more; what has not begun is left out."""

    number: int


class Compute(NamedTuple):
    """The results of items that are computed in groups, in their order."""

    items: Sequence[Any]


class AskLoad(NamedTuple):
    """How busy the device's process is."""


class CheckAdapter(NamedTuple):
    """Read an adapter, which raises RequestError if it cannot be used."""

    path: Path


Command = Submit | Cancel | Call | Withdraw


class Outputs(NamedTuple):
    """What a step brought, for all requests together."""

    outputs: Sequence[Output]

    def __reduce__(self) -> tuple[Any, ...]:
        """Bare tuples are pickled in a quarter of the time of named ones."""
        return _outputs, (list(map(tuple, self.outputs)),)


def _outputs(rows: Sequence[tuple[Any, ...]]) -> Outputs:
    return Outputs(list(map(Output._make, rows)))


class Refused(NamedTuple):
    """A request was not queued."""

    request_id: str
    error: LaunchError


class Returned(NamedTuple):
    """The result of a call."""

    number: int
    value: Any


class Raised(NamedTuple):
    """The error of a call that failed."""

    number: int
    error: LaunchError


class Stopped(NamedTuple):
    """Nothing is answered any more."""

    reason: str


class Drain(NamedTuple):
    """Take no new requests, and end when those under way are answered."""

    why: str


class Halt(NamedTuple):
    """The command to end at once."""


Report = Outputs | Refused | Returned | Raised | Stopped | Drain | Halt
