"""A machine of its own, used without JAX's platform."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from jax._src.lib import xla_client

from neuronjax.options import Options
from neuronjax.runtime.client import Client
from neuronjax.runtime.executable import LoadedProgram

Load = Callable[..., LoadedProgram]


@pytest.fixture(scope="module")
def client() -> Client:
    """The eight logical cores of a trn2 chip, with empty books."""
    return Client(Options(target="trn2.3xlarge", lnc=1))


def compile_options(replicas: int = 1, first: int = 0) -> xla_client.CompileOptions:
    """Options that run a program on ``replicas`` cores from ``first`` on."""
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    build.num_replicas = replicas
    ids = np.arange(first, first + replicas).reshape(replicas, 1)
    build.device_assignment = xla_client.DeviceAssignment.create(ids)
    return options


@pytest.fixture
def load(client: Client) -> Load:
    """Compiles StableHLO text with an empty ``main`` signature around ``body``."""

    def compile_and_load(
        arguments: str, results: str, body: str, replicas: int = 1, first: int = 0
    ) -> LoadedProgram:
        text = f"module @step {{ func.func @main({arguments}) -> ({results}) {{ {body} }} }}"
        return client.compile(text.encode(), compile_options(replicas, first))

    return compile_and_load
