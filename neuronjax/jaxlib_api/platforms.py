"""Plugins in jaxlib: a table of PJRT functions, and what jaxlib makes of it."""

from __future__ import annotations

from typing import Any

from jax._src.lib import _profiler, xla_client

from neuronjax.errors import ConfigurationError, quoted
from neuronjax.jaxlib_api import coordinator

_NAME = "neuronjax"
"""The plugin in jaxlib's own list, where another plugin of the platform would be its namesake."""


def load(c_api: Any) -> None:
    """Makes jaxlib know a plugin by its capsule ``pjrt_c_api``; once in a process.

    Relies on ``xla_client.load_pjrt_plugin_with_c_api`` and on
    ``_profiler.register_plugin_profiler``, which gives ``jax.profiler`` the plugin's traces. If
    they go: ``xla_bridge.register_plugin(name, c_api=...)`` shows what takes their place.
    """
    xla_client.load_pjrt_plugin_with_c_api(_NAME, c_api)
    _profiler.register_plugin_profiler(c_api)


def make_client() -> Any:
    """A client that is told which process this is, and nothing of the others, as for TPUs.

    JAX's own factory also gives jaxlib the coordinator, which it goes on asking for the state of
    all processes, and complains about when the coordinator ends before it.

    Relies on what ``xla_bridge.make_pjrt_c_api_client`` does. Without it: see what JAX registers
    for a plugin without a factory.
    """
    if not xla_client.pjrt_plugin_initialized(_NAME):
        xla_client.initialize_pjrt_plugin(_NAME)
    index, count = coordinator.process()
    options = {"node_id": index, "num_nodes": count} if count > 1 else {}
    return xla_client.make_c_api_client(_NAME, options, None)


def make_topology(c_api: Any, name: str, **options: Any) -> Any:
    """A topology to compile for; options that are None are absent.

    Relies on ``xla_client.make_c_api_device_topology``, which takes only what the C API can hold.

    ConfigurationError: an option is something else.
    """
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if not _is_named_value(value):
            raise ConfigurationError(
                f"topology option {option}={quoted(value)} is a {type(value).__name__}; options "
                "are numbers, texts or lists of whole numbers."
            )
    return xla_client.make_c_api_device_topology(c_api, name, **given)


def _is_named_value(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(entry, int) for entry in value)
    return isinstance(value, str | bool | int | float)
