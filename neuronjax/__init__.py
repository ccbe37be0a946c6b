"""neuronjax: a JAX backend that emulates AWS Trainium and Inferentia.

Contents:

* ``neuronjax.make_mesh``: a ``jax.sharding.Mesh`` whose inner axes lie on the closest cores.
* ``neuronjax.visualize_mesh``: where a mesh lies on the chips and links of its machine.
* ``neuronjax.compare``: a function's error on the chip, op by op, against FP64.
* ``neuronjax.nan_report``: the op that produced the first NaN or infinity.
* ``neuronjax.estimate``: time, memory and price of a function on a machine, without running it.
* ``neuronjax.profile``: records programs and writes a report, a trace, tables and findings.
* ``neuronjax.program_text``: the engine instructions of a function.
* ``neuronjax.inject_faults``: hardware faults while a block runs, for tests of recovery.
* ``neuronjax.configure``: set options in Python, before the first use of the platform.
* ``neuronjax.nki``: NKI kernels, written, run, checked and timed without a chip.
* ``neuronjax.mx``: arrays of the microscaling formats: quantize, multiply, pack.
* ``neuronjax.testing``: assertions for your tests: would a function compile for the device?
* ``neuronjax.torch``: PyTorch modules as JAX functions, for all of the above.
* ``neuronjax.workloads``: steps of a decoder of any size, for estimates.
* ``neuronjax.errors``: every exception that the project raises.
* ``neuronjax.LegalityWarning``: the category of warnings about programs that the Neuron compiler
  would refuse.
* ``neuronjax.Machine``: an instance or UltraServer, to lay a mesh on without its devices.
* ``neuronjax.Comparison``, ``Estimate``, ``Injected``, ``MeshPicture``, ``NanReport``, ``Profile``
  and ``Recorded``: what these functions return.

The platform needs no import: with the package installed, ``JAX_PLATFORMS=neuron`` selects it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # What editors and type checkers read of `_LAZY`; a test compares the two.
    from neuronjax import errors, mx, nki, testing, torch, workloads
    from neuronjax.accuracy.compare import compare
    from neuronjax.accuracy.comparison import Comparison
    from neuronjax.accuracy.nans import NanReport, nan_report
    from neuronjax.errors import LegalityWarning
    from neuronjax.injection import Injected, inject_faults
    from neuronjax.machine.machine import Machine
    from neuronjax.machine.mesh import make_mesh
    from neuronjax.machine.mesh_picture import MeshPicture, visualize_mesh
    from neuronjax.options import configure
    from neuronjax.pjrt.program_text import program_text
    from neuronjax.planning.estimate import estimate
    from neuronjax.planning.record import Estimate
    from neuronjax.profiling.records import Profile
    from neuronjax.recording import Recorded, profile

__version__ = "0.5.0.dev0"

_LAZY = {
    "Comparison": "neuronjax.accuracy.comparison",
    "Estimate": "neuronjax.planning.record",
    "Injected": "neuronjax.injection",
    "LegalityWarning": "neuronjax.errors",
    "Machine": "neuronjax.machine.machine",
    "MeshPicture": "neuronjax.machine.mesh_picture",
    "NanReport": "neuronjax.accuracy.nans",
    "Profile": "neuronjax.profiling.records",
    "Recorded": "neuronjax.recording",
    "compare": "neuronjax.accuracy.compare",
    "configure": "neuronjax.options",
    "errors": "neuronjax.errors",
    "estimate": "neuronjax.planning.estimate",
    "inject_faults": "neuronjax.injection",
    "make_mesh": "neuronjax.machine.mesh",
    "mx": "neuronjax.mx",
    "nan_report": "neuronjax.accuracy.nans",
    "nki": "neuronjax.nki",
    "profile": "neuronjax.recording",
    "program_text": "neuronjax.pjrt.program_text",
    "testing": "neuronjax.testing",
    "torch": "neuronjax.torch",
    "visualize_mesh": "neuronjax.machine.mesh_picture",
    "workloads": "neuronjax.workloads",
}
"""Public name -> the module that has it, which is loaded when the name is first used."""

__all__ = [
    "Comparison",
    "Estimate",
    "Injected",
    "LegalityWarning",
    "Machine",
    "MeshPicture",
    "NanReport",
    "Profile",
    "Recorded",
    "__version__",
    "compare",
    "configure",
    "errors",
    "estimate",
    "inject_faults",
    "make_mesh",
    "mx",
    "nan_report",
    "nki",
    "profile",
    "program_text",
    "testing",
    "torch",
    "visualize_mesh",
    "workloads",
]


if not TYPE_CHECKING:  # A module with `__getattr__` has every name, of type Any.

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module 'neuronjax' has no attribute {name!r}; it has {__all__}")
        module = importlib.import_module(_LAZY[name])
        return getattr(module, name) if module.__name__ != f"{__name__}.{name}" else module


def __dir__() -> list[str]:
    """The public names: the rooms behind them are left out."""
    return sorted(__all__)


def initialize() -> None:
    """Registers platform ``neuron``. JAX calls this in every process when it discovers platforms.

    Only this file and ``jaxlib_api`` are loaded before the platform is used.
    """
    importlib.import_module("neuronjax.jaxlib_api").register(
        load=lambda: importlib.import_module("neuronjax.pjrt.plugin"),
        asked_for=lambda: importlib.import_module("neuronjax.options").is_emulation_asked_for(),
    )
