"""Faults of serving. The message says what was asked, what was there and what to do."""

from launch.errors import LaunchError


class ServingError(LaunchError):
    """The server cannot start or go on."""


class RequestError(LaunchError):
    """A request that cannot be answered as it is; the server lives on."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter  # the field of the request that is to blame


class OverloadedError(LaunchError):
    """The queue is full, or the server is about to end: try again later or elsewhere."""


class CrowdedError(OverloadedError):
    """A client has as many requests in the queue as it may, or has had its tokens: the others have
    room."""

    def __init__(self, message: str, seconds: int = 1) -> None:
        super().__init__(message, seconds)
        self.seconds = seconds  # after which it may try again

    def __str__(self) -> str:
        return str(self.args[0])


class ComputingError(LaunchError):
    """A request could not be computed, and is not to blame for it."""
