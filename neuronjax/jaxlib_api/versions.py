"""The versions of jax and jaxlib that this project is tested with."""

from __future__ import annotations

import logging

import jaxlib

from neuronjax.errors import UntestedVersionWarning
from neuronjax.notices import warned

TESTED = ("0.10.0", "0.12.0")
"""Oldest and newest. ``pyproject.toml`` asks for the oldest; a newer minor one causes a warning."""


def warn_if_untested(installed: str = jaxlib.__version__) -> None:
    """Warns if ``installed`` is newer than the tested minor versions."""
    if _minor(installed) > _minor(TESTED[1]):
        message = (
            f"neuronjax is tested with jaxlib {TESTED[0]} to {TESTED[1]}, and this is {installed}: "
            "what it relies on may have changed. If something fails, install jax and jaxlib "
            f"{TESTED[1]}."
        )
        if not warned(message, UntestedVersionWarning, __file__, 1):
            logging.getLogger("neuronjax").warning(message)


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


JAXLIB = _minor(jaxlib.__version__)
"""Major and minor version of what is installed."""

warn_if_untested()  # once, since modules are imported once
