"""The watched ops of a program, and how their values reach Python.

A watched op is followed by a host callback with its values, which runs whenever the op runs: in
every iteration of a loop, in the branch that is taken, and on every core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.hlo.custom_calls import PYTHON_CALLBACK
from neuronjax.host import callbacks
from neuronjax.jaxlib_api.mlir import ir, stablehlo


@dataclass(frozen=True)
class Site:
    """A watched op."""

    order: int
    """Position in the text of the program."""
    op: str
    source: str
    """``file:line`` in the user's code."""
    loops: tuple[int, ...] = ()
    """Positions of the loops around it, outermost first."""


@dataclass(frozen=True)
class Visit:
    """A run of a watched op on a core."""

    site: Site
    core: int
    iterations: tuple[int, ...]
    """Iteration of each loop around it, from 0, outermost first."""

    @property
    def when(self) -> tuple[int, ...]:
        """The sort key of a core's visits: program order, iteration by iteration."""
        steps = zip(self.site.loops, self.iterations, strict=True)
        return (*(number for step in steps for number in step), self.site.order)


Watch = Callable[[Visit, list[np.ndarray]], None]


class Watcher:
    """Adds watches to a program that ``cores`` cores will run. Keep it while the program runs."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._functions: list[Callable[..., Any]] = []

    def watch(
        self, site: Site, counters: Sequence[Any], values: Sequence[Any], watch: Watch
    ) -> None:
        """Calls ``watch`` with ``values``, at the current insertion point of the program.

        ``counters`` are the i32 iteration numbers of the loops in ``site.loops``.
        """
        depth = len(counters)

        def call(core: np.ndarray, *arrays: np.ndarray) -> tuple[()]:
            iterations = tuple(int(number) for number in arrays[:depth])
            watch(Visit(site, int(core), iterations), list(arrays[depth:]))
            return ()

        self._functions.append(call)  # the registry of callbacks holds it weakly
        number = ir.IntegerAttr.get(ir.IntegerType.get_unsigned(64), callbacks.register(call))
        stablehlo.CustomCallOp(
            [],
            [self._core(), *counters, *values],
            PYTHON_CALLBACK,
            has_side_effect=True,
            backend_config=ir.DictAttr.get({"index": number}),
            api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
        )

    def _core(self) -> Any:
        if self._cores > 1:
            return stablehlo.ReplicaIdOp().result
        return stablehlo.ConstantOp(ir.DenseElementsAttr.get(np.zeros((), np.uint32))).result
