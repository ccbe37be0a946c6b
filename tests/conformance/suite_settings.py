"""The settings in which suites of other projects run, as environments of their processes."""

from __future__ import annotations

from collections.abc import Mapping

_NEURON = {
    "JAX_PLATFORMS": "neuron,cpu",
    "NEURONJAX_TARGET": "trn2.3xlarge",
    "NEURON_LOGICAL_NC_CONFIG": "1",
}

SETTINGS: dict[str, dict[str, str]] = {
    "cpu": {"JAX_PLATFORMS": "cpu"},
    "ieee": {**_NEURON, "NEURONJAX_NUMERICS": "ieee", "NEURONJAX_LEGALITY": "off"},
    "default": _NEURON,
    "engine": {**_NEURON, "NEURONJAX_EXECUTOR": "engine"},
}
"""``cpu`` is JAX's own platform, ``ieee`` the emulated chip with XLA's arithmetic, ``default`` what
users get, ``engine`` the same with values from the emulated engines."""

REFERENCE = {"ieee": "cpu", "default": "cpu", "engine": "default"}
"""What each setting of the platform is compared with."""

DEVICE_TAGS = {"cpu": (), "ieee": ("cpu",), "default": ("cpu",), "engine": ("cpu",)}
"""Tags that JAX's tests see besides the name of the device: upstream runs hundreds of tests only on
`cpu` that are about JAX, not about the CPU."""

_OURS = ("NEURONJAX_", "NEURON_", "JAX_", "XLA_FLAGS")


def environment(
    inherited: Mapping[str, str], setting: str, devices: int, host_devices: bool = True
) -> dict[str, str]:
    """``inherited`` with the variables of ``setting``, and none of those it does not name.

    ``host_devices`` says whether `cpu` gets ``devices`` devices from here; if not, tests ask for
    them by themselves.
    """
    plain = {name: text for name, text in inherited.items() if not name.startswith(_OURS)}
    host = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    own = SETTINGS[setting] | {"NEURON_RT_NUM_CORES": str(devices)}
    return {**plain, **(host if host_devices else {}), **own}
