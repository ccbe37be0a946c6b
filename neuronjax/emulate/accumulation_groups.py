"""Accumulation groups in PSUM: the products from `start` to `stop` form a group.

Sources: NKI ISA nc_matmul, accumulation mode.
"""

from __future__ import annotations

import numpy as np

from neuronjax.emulate.checks import Finding, Kind
from neuronjax.emulate.code import Step
from neuronjax.emulate.frame import Values
from neuronjax.emulate.memory import Storage
from neuronjax.emulate.reporter import Reporter
from neuronjax.emulate.window import Array, Form, Span, Window
from neuronjax.program.operand import Memory
from neuronjax.program.tensor_engine import Matmul, MatmulMX

_CLOSED, _OPEN, _FOREIGN = 0, 1, 2
_ADDS_TO_ANYTHING_SINCE = 4
"""First generation whose products may accumulate onto what other engines wrote."""


class Groups:
    """The state of each byte of PSUM: in an open group, closed, or written by another engine."""

    def __init__(self, reporter: Reporter, version: int) -> None:
        self._reporter = reporter
        self._version = version
        self._states: dict[Storage, Array] = {}
        self._windows: dict[Step, tuple[Window, ...]] = {}
        #: By storage, the bytes of the open group that nothing has touched since a product added to
        #: it.
        self._latest: dict[Storage, Span] = {}

    def restart(self) -> None:
        """Forgets all groups."""
        for state in self._states.values():
            state.fill(_CLOSED)
        self._latest.clear()

    def before(self, step: Step, values: Values) -> None:
        """Checks an instruction that is about to execute."""
        windows = self._windows.get(step)
        if windows is None:
            windows = self._windows[step] = _psum_windows(step)
        if not windows:
            return
        instruction = step.instruction
        if isinstance(instruction, Matmul | MatmulMX):
            self._product(step, instruction, windows[0], values)
        else:
            self._other(step, windows, values)

    def _product(
        self, step: Step, product: Matmul | MatmulMX, window: Window, values: Values
    ) -> None:
        starts, stops = (step.frame.flag(flag)(values) for flag in (product.start, product.stop))
        span = window.span(values)
        if not starts and not stops and self._latest.get(window.storage) == span:
            return
        state = self._state(window, values)
        if starts and np.any(state == _OPEN):
            self._report(step, window, "starts a group before the last one ended", "Set stop first")
        missing = state == _FOREIGN if product.resumes else state != _OPEN
        if not starts and np.any(missing) and self._version < _ADDS_TO_ANYTHING_SINCE:
            self._report(step, window, "adds where no group has started", "Set start first")
        state[...] = _CLOSED if stops else _OPEN
        self._latest.pop(window.storage, None)
        if not stops:
            self._latest[window.storage] = span

    def _other(self, step: Step, windows: tuple[Window, ...], values: Values) -> None:
        written = step.instruction.writes()
        for window in windows:
            self._latest.pop(window.storage, None)
            state = self._state(window, values)
            if np.any(state == _OPEN):
                self._report(
                    step, window, "touches an unfinished group", "Set stop, or wait for it"
                )
            if window.access in written:
                state[...] = _FOREIGN

    def _state(self, window: Window, values: Values) -> Array:
        storage = window.storage
        if storage not in self._states:
            size = storage.rows * storage.width // storage.granule
            self._states[storage] = np.zeros(size, np.uint8)
        return window.granules(self._states[storage], values)

    def _report(self, step: Step, window: Window, problem: str, remedy: str) -> None:
        message = (
            f"{step.path}{step.sources}: {window.field} {problem} in"
            f" {window.access.buffer.name}. {remedy}."
        )
        rank = self._reporter.rank
        self._reporter.report(Finding(Kind.ACCUMULATION, rank, (step.path,), message))


def uses_psum(step: Step) -> bool:
    """Whether an instruction has an operand in PSUM."""
    return any(access.memory is Memory.PSUM for access in step.instruction.accesses())


def _psum_windows(step: Step) -> tuple[Window, ...]:
    return tuple(
        Window(
            step.instruction, access, step.locations[access.buffer.name], step.frame, step.path,
            Form.of(access, step.frame.limits),
        )
        for access in step.instruction.accesses()
        if access.memory is Memory.PSUM
    )  # fmt: skip
