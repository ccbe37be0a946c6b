"""neuronjax: a JAX backend that emulates AWS Trainium and Inferentia.

Contents:

* ``neuronjax.make_mesh``: a ``jax.sharding.Mesh`` whose inner axes lie on the closest cores.
* ``neuronjax.compare``: a function's error on the chip, op by op, against FP64.
* ``neuronjax.nan_report``: the op that made the first NaN or infinity.
* ``neuronjax.estimate``: time, memory and price of a function on a machine, without running it.
* ``neuronjax.profile``: records what runs within it: a report, a trace, tables, findings.
* ``neuronjax.configure``: set options in Python, before the first use of the platform.
* ``neuronjax.mx``: arrays of the microscaling formats: quantize, multiply, pack.
* ``neuronjax.testing``: assertions for users' tests: would a function compile for the device?
* ``neuronjax.errors``: every exception the project raises on purpose.
* ``neuronjax.LegalityWarning``: the category of warnings about programs that the Neuron compiler
  would refuse.

The platform needs no import: with the package installed, ``JAX_PLATFORMS=neuron`` selects it.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "LegalityWarning": "neuronjax.errors",
    "compare": "neuronjax.accuracy.compare",
    "configure": "neuronjax.options",
    "estimate": "neuronjax.planning.estimate",
    "make_mesh": "neuronjax.machine.mesh",
    "mx": "neuronjax.mx",
    "nan_report": "neuronjax.accuracy.nans",
    "profile": "neuronjax.recording",
    "testing": "neuronjax.testing",
}

__all__ = [
    "LegalityWarning",
    "__version__",
    "compare",
    "configure",
    "estimate",
    "make_mesh",
    "mx",
    "nan_report",
    "profile",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'neuronjax' has no attribute {name!r}; it has {__all__}")
    module = importlib.import_module(_LAZY[name])
    return getattr(module, name) if module.__name__ != f"{__name__}.{name}" else module
