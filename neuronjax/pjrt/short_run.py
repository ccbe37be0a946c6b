"""The short way to run a program, prepared for the machine code of ``short_run_ir.py``."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from neuronjax.pjrt.handles import WORDS, array_type
from neuronjax.pjrt.short_run_ir import PLAN, PLAN_WORD
from neuronjax.pjrt.values import bare_template
from neuronjax.runtime.executable import LoadedProgram
from neuronjax.runtime.memory import HbmLedger
from neuronjax.runtime.plain_run import PlainRun

_CALL = ctypes.PYFUNCTYPE(ctypes.c_uint64)  # keeps the interpreter's lock, which the code needs
_CALL_WITH = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)


class Plan:
    """What the code has to know of one program; it must live as long as the program's handle has
    its address."""

    def __init__(
        self,
        loaded: LoadedProgram,
        plain: PlainRun,
        device: int,
        records: Sequence[bytes],
    ) -> None:
        """``device`` is a handle, and ``records`` are the templates of ready results."""
        self._kept: tuple[Any, ...] = (
            *(loaded, plain, plain.observers, plain.start, list(plain.handlers)),
            *loaded.results,
        )
        objects = map(id, self._kept[: PLAN.index("device")])
        numbers = (device, plain.arguments, len(records), plain.result_bytes, plain.needed)
        bare = b"".join(map(bare_template, records, loaded.results))
        self._words = array_type(ctypes.c_uint64, len(PLAN) + len(bare) // 8)(*objects, *numbers)
        self.address = ctypes.addressof(self._words)
        ctypes.memmove(self.address + 8 * len(PLAN), bare, len(bare))

    def offer(self, executable: int) -> None:
        """Lets runs of the executable with this handle go the short way."""
        WORDS[(executable >> 3) + PLAN_WORD] = self.address


def withdraw(executable: int) -> None:
    """Takes the short way from an executable."""
    WORDS[(executable >> 3) + PLAN_WORD] = 0


class ShortRuns:
    """The short runs of a process; the ``Bare`` of its table of values."""

    def __init__(self, words: Mapping[str, int], functions: Mapping[str, int]) -> None:
        """``words`` are the addresses of the words of the code, ``functions`` those of its
        functions."""
        self.destroyed = words["destroyed_bare"] >> 3
        self.free = words["free_count"] >> 3
        self.dressed = 0
        self.ledgers: dict[int, HbmLedger] = {}
        self._living = words["bare_values"] >> 3
        self.end_destroyed = _CALL(functions["end_bare"])
        self.give = _CALL_WITH(functions["give_record"])

    def count(self) -> int:
        """Bare values there are."""
        return WORDS[self._living] - self.dressed
