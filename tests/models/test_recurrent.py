"""Forecasts of recurrent networks: learnt from a real series, and split over devices."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.errors import ConfigError
from models.parameters import Parameters, axis_names_of, merge, split
from models.recurrent.model import CELLS, Forecaster, ForecasterConfig
from models.sharding import parameter_shardings

# Months of 1949 to 1960, in thousands; Box, Jenkins and Reinsel, "Time Series Analysis", series G.
PASSENGERS = np.loadtxt(Path(__file__).parent / "airline.csv", skiprows=1)
YEAR, HIDDEN = 12, 24  # months of a window, and months at the end that training does not see
STEPS = 300


def windows() -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of each year [N, 12, 1] and of the month after it [N], less that before it."""
    logs = np.log(PASSENGERS).astype(np.float32)
    years = np.lib.stride_tricks.sliding_window_view(logs, YEAR)[:-1]
    last = years[:, -1:]
    return (years - last)[..., None], logs[YEAR:] - last[:, 0]


def build(cell: str) -> tuple[Any, Parameters]:
    return split(Forecaster(ForecasterConfig(cell, dim=24), rngs=nnx.Rngs(0)))


@partial(jax.jit, static_argnums=0)
def forecast(graph: Any, parameters: Parameters, known: jax.Array) -> jax.Array:
    return merge(graph, parameters)(known)[:, 0, 0]


@pytest.fixture(params=["cpu", "neuron"])
def platform(request: pytest.FixtureRequest) -> Iterator[str]:
    with jax.default_device(jax.devices(request.param)[0]):
        yield request.param


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_a_learnt_forecast_is_better_than_the_last_month_or_year(cell: str, platform: str) -> None:
    known, wanted = windows()
    graph, parameters = build(cell)
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(parameters: Parameters, state: Any) -> tuple[Parameters, Any]:
        def loss(parameters: Parameters) -> jax.Array:
            errors = forecast(graph, parameters, known[:-HIDDEN]) - wanted[:-HIDDEN]
            return jnp.mean(jnp.square(errors))

        updates, state = optimizer.update(jax.grad(loss)(parameters), state)
        return optax.apply_updates(parameters, updates), state

    state = optimizer.init(parameters)
    for _ in range(STEPS):
        parameters, state = step(parameters, state)
    hidden = wanted[-HIDDEN:]
    learnt = np.asarray(forecast(graph, parameters, known[-HIDDEN:]))
    guesses = {"learnt": learnt, "last month": 0.0, "last year": known[-HIDDEN:, 0, 0]}
    errors = {name: np.sqrt(np.mean((guess - hidden) ** 2)) for name, guess in guesses.items()}
    assert min(errors, key=lambda name: errors[name]) == "learnt", errors


@pytest.mark.parametrize("cell", CELLS)
def test_sharded_is_unsharded(cell: str, devices: list[jax.Device]) -> None:
    known = windows()[0][:32]
    graph, parameters = build(cell)
    mesh = Mesh(np.array(devices[:4]).reshape(2, 2), ("data", "model"))
    shardings = parameter_shardings(mesh, parameters, axis_names_of(graph, parameters))
    rows = jax.device_put(known, NamedSharding(mesh, PartitionSpec("data")))
    got = forecast(graph, jax.device_put(parameters, shardings), rows)
    np.testing.assert_allclose(got, forecast(graph, parameters, known), rtol=1e-5, atol=1e-6)


def test_a_cell_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose one of lstm, gru"):
        ForecasterConfig("elman")
