"""What is compiled once for all tests of the server."""

from collections.abc import Iterator

import pytest

from launch.serving.runner.runner import Runner
from tests.serving.http_server import LIMITS, Running, byte_model, running


@pytest.fixture(scope="session")
def byte_runner() -> Runner:
    """The programs of a tiny model that reads bytes."""
    return byte_model().runner(LIMITS)


@pytest.fixture(scope="module")
def server(byte_runner: Runner) -> Iterator[Running]:
    """A server with default settings."""
    with running(byte_runner) as it:
        yield it
