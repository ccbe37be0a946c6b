"""Loaded executables of JAX."""

from __future__ import annotations

from typing import Any


def fingerprint(compiled: Any) -> str:
    """What PJRT call ``LoadedExecutable_Fingerprint`` said of a ``jax.stages.Compiled``.

    Relies on ``LoadedExecutable.fingerprint``. Without it: number programs in the name of their
    module. Empty if the platform has none.
    """
    data = getattr(compiled.runtime_executable(), "fingerprint", None)
    return bytes(data or b"").decode(errors="replace")
