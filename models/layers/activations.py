"""Activation functions by the names that config.json uses (`hidden_act` and its like)."""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp

from models.errors import ConfigError

Activation = Callable[[jax.Array], jax.Array]


def _quick_gelu(x: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(1.702 * x)


# Training keeps their argument alone: derivatives of the steps would keep several tensors each.
_gelu = jax.checkpoint(partial(jax.nn.gelu, approximate=False))
_gelu_tanh = jax.checkpoint(jax.nn.gelu)

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "hardswish": jax.nn.hard_swish,
    "linear": lambda x: x,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}


def activation(name: str) -> Activation:
    """The function of that name. Raises ConfigError if there is none."""
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"the activation {name!r} is not supported; choose one of "
            f"{', '.join(sorted(ACTIVATIONS))}, or add it to models/layers/activations.py"
        )
    return ACTIVATIONS[name]
