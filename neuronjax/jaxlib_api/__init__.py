"""The one door to what JAX and jaxlib do not publish.

No other room imports ``jax._src``, ``jaxlib`` or the wire formats, dump names and error texts of
XLA. Each file says what is relied on and what to do when it goes; ``tests/jaxlib_api`` holds the
installed libraries against it.

This file registers the platform. It runs in every process that uses JAX, whatever the platform, so
it loads nothing of the project: that waits until somebody uses the platform.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

import jax
from jax._src import xla_bridge
from jax._src.interpreters import mlir as jax_mlir

PLATFORM = "neuron"

PRIORITY = -100
"""Below JAX's own platforms: installing the package must not take over anybody's CPU or GPU."""

LIBNEURONXLA = "libneuronxla"
"""The package of AWS's plugin for real devices, which offers the same platform."""

logger = logging.getLogger("neuronjax")


class Plugin(Protocol):
    """What is loaded once somebody uses the platform."""

    def make_client(self) -> Any:
        """The platform's client. Raises ``ConfigurationError``: a variable has a wrong value."""

    def make_topology(self, name: str = "", **options: Any) -> Any:
        """Devices to compile for, which need not exist."""

    def lowering_rules(self) -> dict[Any, Any]:
        """Primitive -> lowering rule."""


def register(load: Callable[[], Plugin], asked_for: Callable[[], bool]) -> None:
    """Makes the platform known to JAX; called by JAX when it looks for platforms.

    Where AWS's plugin is installed, too, the platform is left to it unless ``asked_for``.

    Relies on ``xla_bridge.register_backend_factory`` (``jax.extend.backend`` has it, too), on
    ``register_plugin_callbacks`` and on ``_backend_factories``, where a later registration of the
    same name wins.
    """
    if not _is_taken():
        return _Registration(load).install()
    if not asked_for():
        level = logging.WARNING if PLATFORM in chosen_platforms() else logging.INFO
        return logger.log(level, _LEFT_TO_LIBNEURONXLA)
    registration = _Registration(load)
    registration.install()
    xla_bridge.register_plugin_callbacks(lambda c_api: registration.install())
    return None


_LEFT_TO_LIBNEURONXLA = (
    f"{LIBNEURONXLA}, AWS's plugin for Neuron devices, is installed beside neuronjax; both offer "
    f"platform {PLATFORM!r}, and it is left to AWS's. Set NEURONJAX_EMULATE=1 to emulate devices "
    "instead."
)


def chosen_platforms() -> list[str]:
    """The platforms that the user named (``JAX_PLATFORMS``); empty if none."""
    return [name for name in (jax.config.jax_platforms or "").split(",") if name]


def _is_taken() -> bool:
    """Whether another plugin offers the platform, now or later: JAX asks plugins in any order."""
    return (
        PLATFORM in xla_bridge._backend_factories
        or importlib.util.find_spec(LIBNEURONXLA) is not None
    )


class _Registration:
    """The platform in JAX's tables: a factory of clients, one of topologies, lowering rules."""

    def __init__(self, load: Callable[[], Plugin]) -> None:
        self._load = load

    def install(self) -> None:
        xla_bridge.register_backend_factory(
            PLATFORM,
            self._client,
            priority=PRIORITY,
            fail_quietly=False,
            make_topology=self._topology,
        )
        jax_mlir._platform_specific_lowerings[PLATFORM] = LazyRules(self._rules)
        chosen = chosen_platforms()
        if PLATFORM in chosen and "cpu" not in chosen:  # JAX places operands of callbacks there
            jax.config.update("jax_platforms", ",".join([*chosen, "cpu"]))

    def _client(self) -> Any:
        """Called for each platform that is named, and for all if none is."""
        named = PLATFORM in chosen_platforms()
        return self._load().make_client() if named else LazyClient(self._load)

    def _topology(self, name: str = "", **options: Any) -> Any:
        return self._load().make_topology(name, **options)

    def _rules(self) -> dict[Any, Any]:
        """The rules, unless another plugin has taken the platform since."""
        registered = xla_bridge._backend_factories[PLATFORM].factory
        return self._load().lowering_rules() if registered == self._client else {}


class LazyClient:
    """A client that is made when somebody asks for more than JAX does when it starts.

    While JAX starts, and does not know this object yet, it asks for the number of devices, which
    must not be zero, and for a few facts that it logs. Relies on ``xla_bridge._backends``, where
    JAX puts what the factory returned. Without it: always make the client, at the price of a
    second in every process that does not name its platforms.
    """

    platform = PLATFORM

    def __init__(self, load: Callable[[], Plugin]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._client: Any = None

    @property
    def platform_version(self) -> str:
        """``jax.profiler`` notes it for every platform, used or not."""
        return "not in use" if self._client is None else self._client.platform_version

    def device_count(self) -> int:
        return 1 if self._is_starting() else self._get_client().device_count()

    def local_devices(self) -> list[Any]:
        return [] if self._is_starting() else self._get_client().local_devices()

    def process_index(self) -> int:
        return 0 if self._is_starting() else self._get_client().process_index()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get_client(), name)

    def _is_starting(self) -> bool:
        return self._client is None and xla_bridge._backends.get(PLATFORM) is not self

    def _get_client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._load().make_client()
            return self._client


class LazyRules(dict[Any, Any]):
    """A platform's row in JAX's table of lowering rules, loaded when a rule is looked for.

    Relies on ``mlir._platform_specific_lowerings`` and on rules being found by ``in`` and ``[]``.
    Without it: ``jax.interpreters.mlir.register_lowering`` for each primitive, when the client is
    made; lowering without a client would have to wait for that, too.
    """

    def __init__(self, load: Callable[[], dict[Any, Any]]) -> None:
        super().__init__()
        self._load = load

    def _load_rules(self) -> dict[Any, Any]:
        if jax_mlir._platform_specific_lowerings[PLATFORM] is self:
            rules = self._load()
            rules.update(self.items())  # what others registered for the platform
            jax_mlir._platform_specific_lowerings[PLATFORM] = rules
        return jax_mlir._platform_specific_lowerings[PLATFORM]

    def __contains__(self, primitive: object) -> bool:
        return primitive in self._load_rules()

    def __missing__(self, primitive: Any) -> Any:
        return self._load_rules()[primitive]
