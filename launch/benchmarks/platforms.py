"""The two platforms of a comparison, with as many devices each."""

from __future__ import annotations

import os
from dataclasses import dataclass

import jax

DEVICES = 8

_IEEE = {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURONJAX_NUMERICS": "ieee", "NEURONJAX_LEGALITY": "off"}
"""The arithmetic of the baseline."""

ONE_CHIP = {"NEURONJAX_TARGET": "trn2.3xlarge", **_IEEE}
"""One Trainium2 chip as DEVICES logical cores."""

CHIP_NUMERICS = {"NEURONJAX_NUMERICS": "chip"}
STOCHASTIC = {**CHIP_NUMERICS, "NEURON_RT_STOCHASTIC_ROUNDING_EN": "1"}

ULTRASERVER = {"NEURONJAX_TARGET": "trn2-ultraserver", **_IEEE}
"""Four instances of 16 chips as ULTRASERVER_DEVICES logical cores."""

ULTRASERVER_DEVICES = 512


@dataclass(frozen=True)
class Settings:
    """What is compared, and how often.

    Attributes:
      platform: JAX platform under test.
      baseline: JAX platform it is compared with.
      repetitions: timed pairs per row; None leaves it to the row.
    """

    platform: str = "neuron"
    baseline: str = "cpu"
    repetitions: int | None = None


def select(settings: Settings) -> None:
    """Makes both platforms available in this process; call before JAX makes its devices."""
    os.environ.update(ONE_CHIP)
    names = dict.fromkeys((settings.platform, settings.baseline))
    jax.config.update("jax_platforms", ",".join(names))
    jax.config.update("jax_num_cpu_devices", DEVICES)


def devices(platform: str, count: int) -> list[jax.Device]:
    """The first `count` devices of `platform`.

    Raises:
      ValueError: it has fewer.
    """
    available = jax.devices(platform)
    if len(available) < count:
        raise ValueError(
            f"asked for {count} devices of platform {platform}, but found {len(available)}; set "
            "the number of devices before the first use of JAX"
        )
    return available[:count]
