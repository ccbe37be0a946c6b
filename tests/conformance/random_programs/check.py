"""One program under two settings."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

import numpy as np

from tests.conformance.random_programs.compare import died, difference, manner
from tests.conformance.random_programs.program import RandomProgram
from tests.conformance.random_programs.shrink import shrunk
from tests.conformance.random_programs.workers import Worker


@dataclass(frozen=True)
class Finding:
    """A program that shows a difference, as small as it could be made."""

    program: RandomProgram
    error: str

    @property
    def manner(self) -> str:
        return manner(self.error)

    @property
    def kinds(self) -> str:
        return "+".join(statement.kind for statement in self.program.statements)


class Pair:
    """Two processes that run the same programs."""

    def __init__(self, against: str, reference: str) -> None:
        self._against, self._reference = Worker(against), Worker(reference)
        self._cpu = Worker("cpu")
        self._bits = reference != "host"

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._against.close()
        self._reference.close()
        self._cpu.close()

    def check(self, program: RandomProgram) -> Finding | None:
        """The finding that a program shows, shrunk."""
        error = self._difference(program)
        if not error:
            return None
        sort = manner(error)
        small = shrunk(
            program,
            lambda candidate: manner(self._difference(candidate)) == sort,
            self._values,
        )
        return Finding(small, self._difference(small) or error)

    def _difference(self, program: RandomProgram) -> str:
        got, want = self._against.run(program), self._reference.run(program)
        if died(want) and died(self._cpu.run(program)):
            return ""  # XLA cannot compile it, and there is nothing to compare with
        return difference(program, got, want, self._bits)

    def _values(self, program: RandomProgram) -> list[np.ndarray] | None:
        outcome = self._reference.run(program)
        return None if isinstance(outcome, str) else outcome
