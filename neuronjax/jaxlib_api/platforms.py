"""How a platform becomes known to JAX, and what JAX does not let a plugin say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jax._src import compiler as jax_compiler
from jax._src import stages, xla_bridge
from jax._src.lib import _profiler, xla_client

from neuronjax.jaxlib_api import coordinator


def register(platform: str, priority: int, c_api: Any) -> None:
    """Registers a plugin by a capsule ``pjrt_c_api``, its profiler included.

    Relies on ``xla_bridge.register_plugin``, which JAX documents for plugins, and on
    ``_profiler.register_plugin_profiler``, which JAX calls for plugins in shared libraries alone.
    """
    xla_bridge.register_plugin(
        platform, priority=priority, c_api=c_api, factory=partial(_client, platform)
    )
    _profiler.register_plugin_profiler(c_api)


def _client(platform: str) -> Any:
    """A client that is told which process this is, and nothing of the others, as for TPUs.

    JAX's own factory also gives jaxlib the coordinator, which it goes on asking for the state of
    all processes, and complains about when the coordinator ends before it.

    Relies on what ``xla_bridge.make_pjrt_c_api_client`` does. Without it: leave the factory out.
    """
    if not xla_client.pjrt_plugin_initialized(platform):
        xla_client.initialize_pjrt_plugin(platform)
    index, count = coordinator.process()
    options = {"node_id": index, "num_nodes": count} if count > 1 else {}
    return xla_client.make_c_api_client(platform, options, None)


def compile_topologies_apart(platform: str) -> None:
    """Keeps JAX from compiling for a topology of ``platform`` through a live client.

    jaxlib holds the interpreter's lock in that call while another thread compiles, and compiling
    needs the interpreter here: the process would stand still. Without a live client JAX compiles
    through the topology itself, in the calling thread.
    """
    find = jax_compiler._get_cross_compile_backend

    def find_other(backend: Any) -> Any:
        return None if backend.platform == platform else find(backend)

    jax_compiler._get_cross_compile_backend = find_other


def show_programs(text_of: Callable[[Any], str | None]) -> None:
    """Lets ``as_text`` of JAX's compiled functions ask ``text_of`` about the loaded executable.

    The PJRT C API can hand out HLO only, so JAX's method asks here first.
    """
    hlo_text: Callable[[Any], str] = stages.Executable.as_text

    def as_text(self: Any) -> str:
        text = text_of(self.xla_extension_executable())
        return hlo_text(self) if text is None else text

    stages.Executable.as_text = as_text
