"""Functions that are compiled for each shape of their arguments."""

from collections.abc import Callable
from typing import Any

import jax

from launch.serving.runner.meter import Meter


class Shaped:
    """A function whose first argument always has the same shapes, such as parameters."""

    def __init__(self, name: str, function: Callable[..., Any], **options: Any) -> None:
        """`options` are those of jax.jit."""
        self._name, self._function = name, jax.jit(function, **options)
        self._programs: dict[tuple[Any, ...], Any] = {}

    def run(self, meter: Meter, *arguments: Any) -> Any:
        """The results of the function, compiled once for each shape of its arguments."""
        key = tuple(leaf.shape for leaf in jax.tree.leaves(arguments[1:]))
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._function.lower(*arguments).compile()
        meter.count(self._name, program)
        return program(*arguments)
