"""Processes that run programs, each under options of its own, as a user's process would."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Any

import numpy as np

from tests.conformance.random_programs.program import RandomProgram

_EIGHT_CORES = {"NEURONJAX_TARGET": "trn2.3xlarge", "NEURON_LOGICAL_NC_CONFIG": "1"}
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "host": {},
    "ieee": {"NEURONJAX_NUMERICS": "ieee"},
    "cpu": {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    },
    "verified": {"NEURONJAX_VERIFY_PASSES": "1"},
    "engine": {"NEURONJAX_EXECUTOR": "engine"},
    "dataflow": {"NEURONJAX_EXECUTOR": "engine", "NEURONJAX_ENGINE_ORDER": "dataflow"},
    "adversarial": {"NEURONJAX_EXECUTOR": "engine", "NEURONJAX_ENGINE_ORDER": "adversarial"},
    "mesh": _EIGHT_CORES,
    "processes": {**_EIGHT_CORES, "NEURON_RT_NUM_CORES": "4"},
}
"""Name of a setting -> what differs in it from the defaults."""
_MODULE = "tests.conformance.random_programs.worker"
_MODULES: Mapping[str, Sequence[str]] = {
    "mesh": ("tests.conformance.random_programs.split_worker", "1"),
    "processes": ("tests.conformance.random_programs.split_worker", "2"),
}
"""Name of a setting -> what runs in it, and its arguments, where that is not `_MODULE`."""

SETTINGS = tuple(_SETTINGS)

Outcome = list[np.ndarray] | str
"""Results, or the text of what went wrong."""


class Worker:
    """A process that is started again when it dies or does not answer."""

    def __init__(
        self,
        setting: str,
        timeout: float = 300,
        module: str | None = None,
    ) -> None:
        ours = ("NEURON", "JAX_", "XLA_")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        self._environment = inherited | {"JAX_PLATFORMS": "neuron,cpu"} | _SETTINGS[setting]
        self._timeout = timeout
        self._words = _MODULES.get(setting, (module or _MODULE,))
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def run(self, program: RandomProgram) -> Outcome:
        """What becomes of a program; what happens to the process is part of it."""
        return self.run_source(program.source, [each.array for each in program.arguments])

    def run_source(self, source: str, arguments: Sequence[np.ndarray]) -> Outcome:
        outcome: Outcome = self.ask(source, list(arguments))
        return outcome

    def ask(self, *request: object) -> Any:
        """What the process answers, or the text of what happened to it."""
        if self._process is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
                env=self._environment,
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            readable, _, _ = select.select([process.stdout], [], [], self._timeout)
            if not readable:
                self.close()
                return f"Hang: no answer within {self._timeout:g} s"
            return pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            code, words = process.wait(), self._last_words()
            self.close()
            return f"Crash: the process ended with status {code}\n{words}"

    def _last_words(self) -> str:
        assert self._log is not None
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 1000))
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
