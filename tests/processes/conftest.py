"""The surroundings of jobs of several processes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def environment() -> dict[str, str]:
    """That of this process, with ``neuron`` as the only platform."""
    return {**os.environ, "JAX_PLATFORMS": "neuron"}


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of this machine on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free_address() -> str:
    """An address of this machine where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"
