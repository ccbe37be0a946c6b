"""Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997; Cho et al., "GRU", 2014.

The cells and the loop over time (`nnx.RNN`, which is `nnx.scan`) are Flax's. Axis names: B batch,
T times, C series, H width of the state, F foretold times.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import ConfigError
from models.layers.axes import AXES
from models.layers.factory import LayerFactory
from models.settings import LAYERS, WIDTH, check_settings, setting

CELLS: Mapping[str, Callable[..., Any]] = {"lstm": nnx.OptimizedLSTMCell, "gru": nnx.GRUCell}


@dataclass(frozen=True)
class ForecasterConfig:
    """Every dimension. Raises ConfigError if there is no such cell, or a size is out of range."""

    cell: str = "lstm"  # a key of CELLS
    num_channels: int = setting(None, "number of series", WIDTH, default=1)
    dim: int = setting(None, "width of the hidden state", WIDTH, default=32)
    num_layers: int = setting(None, "number of layers", LAYERS, default=1)
    horizon: int = setting(None, "time steps to forecast", WIDTH, default=1)
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)
        if self.cell not in CELLS:
            raise ConfigError(
                f"cell={self.cell!r} is not supported; choose one of {', '.join(CELLS)}"
            )


class Forecaster(nnx.Module):
    """Known times of several series to their next ones, from the state after the last."""

    def __init__(self, config: ForecasterConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.layers = nnx.List(
            [
                _layer(config, config.dim if number else config.num_channels, rngs)
                for number in range(config.num_layers)
            ]
        )
        self.projection = LayerFactory(config.dim**-0.5, config.param_dtype, rngs).dense(
            {"dim": config.dim}, {"times": config.horizon, "series": config.num_channels}
        )

    def __call__(self, values: jax.Array) -> jax.Array:
        """The next values [B, F, C] of known ones [B, T, C]."""
        state = jnp.zeros((values.shape[0], self.config.dim), values.dtype)
        carry = (state, state) if self.config.cell == "lstm" else state
        for layer in self.layers:
            values = layer(values, initial_carry=carry)
        return self.projection(values[:, -1])


def _layer(config: ForecasterConfig, inputs: int, rngs: nnx.Rngs) -> nnx.RNN:
    """A cell that is carried over time: [B, T, inputs] -> [B, T, H]."""
    cell = CELLS[config.cell](
        inputs,
        config.dim,
        param_dtype=config.param_dtype,
        rngs=rngs,
        kernel_metadata={AXES: ("features", "gates")},
        recurrent_kernel_metadata={AXES: ("state", "gates")},
        bias_metadata={AXES: ("gates",)},
    )
    return nnx.RNN(cell, rngs=False)
