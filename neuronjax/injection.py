"""`neuronjax.inject_faults`: hardware faults while a block of code runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from neuronjax.faults import parse_faults
from neuronjax.recording import client_in_use
from neuronjax.runtime.injection import Active, Injector


@dataclass
class Injected:
    """Active faults."""

    _injector: Injector
    _active: list[Active]

    def lift(self) -> None:
        """Ends them early: dead cores work again, and runs that hang fail at once."""
        self._injector.lift(self._active)


@contextmanager
def inject_faults(faults: str) -> Iterator[Injected]:
    """Injects hardware faults until the block ends, for tests of recovery.

    `faults` has the syntax of NEURONJAX_FAULTS (see `neuronjax.faults`), such as
    ``"core_dies core=3 step=10 program=jit_step"``; steps count from this call on. Waiting for
    results raises the errors as ``jax.errors.JaxRuntimeError``.

    ConfigurationError: there is no such fault, core or link, or the platform is not in use.
    """
    asked = parse_faults("inject_faults", faults)
    injector = client_in_use().injector
    injected = Injected(injector, injector.inject(asked))
    try:
        yield injected
    finally:
        injected.lift()
