"""The tensors of a module as an argument of its function."""

from __future__ import annotations

from typing import Any, NamedTuple


class State(NamedTuple):
    """The tensors of a module as arrays, by their paths: ``model.layers.0.mlp.up_proj.weight``.

    A tensor with several paths, such as a tied embedding, is here once, under the first of them.
    """

    parameters: dict[str, Any]
    """The parameters that training changes: those that require gradients."""
    buffers: dict[str, Any]
    """Everything else: statistics of batch norms, frozen parameters, tables."""
