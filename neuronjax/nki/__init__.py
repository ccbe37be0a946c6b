"""NKI kernels without a chip: traced to a `Program`, run by the emulator.

    @nki.jit
    def kernel(x): ...
    result = nki.simulate(kernel)(x)
    time = nki.benchmark(kernel, x).total_ns
    report = nki.profile(kernel, x, folder="report")
    judged = nki.evaluate(kernel, reference, [x])

Loops stay loops where their rounds differ in addresses only. Names that are not built raise
``UnsupportedProgramError`` on call; every module lists its own in `NOT_BUILT`, with the reasons.
"""

import importlib.util
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from neuronjax import nki_imports
from neuronjax.errors import ConfigurationError
from neuronjax.nki import collectives, isa, language
from neuronjax.nki.gym.evaluation import Evaluation, evaluate
from neuronjax.nki.gym.limits import Limits
from neuronjax.nki.gym.trials import Trials, evaluate_files
from neuronjax.nki.kernel import Kernel, jit, simulate
from neuronjax.nki.profiling import benchmark, profile
from neuronjax.nki.refusal import removed, unknown
from neuronjax.nki.sweep import Point, Sweep, sweep
from neuronjax.program.element_types import ElementType
from neuronjax.timing.timeline import Timeline

__all__ = [
    "Evaluation", "Kernel", "Limits", "Point", "Sweep", "Timeline", "Trials", "benchmark",
    "collectives", "dtype", "evaluate", "evaluate_files", "install", "isa", "jit", "language",
    "profile", "simulate", "sweep",
]  # fmt: skip

dtype = ElementType
"""What kernels annotate the dtypes of `nki.language` with."""

REMOVED: Mapping[str, str] = {
    "baremetal": "call the kernel with arrays, nki.simulate(kernel) or nki.benchmark(kernel, …)",
    "simulate_kernel": "use nki.simulate(kernel)(*arrays)",
    "trace": "use kernel.trace(*arrays)",
}
"""Name of older versions of NKI -> what to write instead."""


def install() -> None:
    """Lets `import nki` find these modules, and `neuronxcc.nki` those of NKI 0.x.

    Raises:
      ConfigurationError: another package `nki` is installed, which is left alone.
    """
    nki_imports.allow()
    present = sys.modules.get("nki")
    if present is not None:
        is_other = present is not sys.modules[__name__]
    else:
        is_other = not nki_imports.is_ours(importlib.util.find_spec("nki"))
    if is_other:
        raise ConfigurationError(
            "a package 'nki' is already installed and would be hidden. Import neuronjax.nki "
            "under its own name, or use an environment without that package."
        )


if not TYPE_CHECKING:

    def __getattr__(name: str) -> None:
        if name in REMOVED:
            raise removed("nki", name, REMOVED[name])
        raise unknown("nki", name, __all__)
