"""``compiled.as_text()`` of a jitted function: the engine program, where the executor made one."""

from __future__ import annotations

from typing import Any

from neuronjax.pjrt.client_state import PLATFORM_NAME
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.program import text


def engine_text(plugin: Plugin, loaded: Any) -> str | None:
    """The engine program of one of JAX's loaded executables, if a client of ``plugin`` made it."""
    client = getattr(loaded, "client", None)
    if client is None or client.platform != PLATFORM_NAME:
        return None
    name = bytes(loaded.fingerprint or b"").decode()
    for state in plugin.clients:
        program = state.client.engine_program(name)
        if program is not None:
            return text.format(program)
    return None
