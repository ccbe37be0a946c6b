"""``compiled.as_text()`` of a jitted function: the engine program, where the executor made one.

The PJRT C API can hand out HLO only, so JAX's method asks here first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax._src import stages

from neuronjax.pjrt.client_state import PLATFORM_NAME
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.program import text


def show_programs(plugin: Plugin) -> None:
    """Lets ``as_text`` of JAX's compiled functions show the programs of this plugin's clients."""
    hlo_text: Callable[[Any], str] = stages.Executable.as_text

    def as_text(self: Any) -> str:
        loaded = self.xla_extension_executable()
        client = getattr(loaded, "client", None)
        if client is not None and client.platform == PLATFORM_NAME:
            name = bytes(loaded.fingerprint or b"").decode()
            for state in plugin.clients:
                program = state.client.engine_program(name)
                if program is not None:
                    return text.format(program)
        return hlo_text(self)

    stages.Executable.as_text = as_text
