"""NKI kernels without a chip: traced to a `Program`, run by the emulator.

    @nki.jit
    def kernel(x): ...
    result = nki.simulate(kernel)(x)
    time = nki.benchmark(kernel)(x).total_ns

Loops are written out. Names of `nki.isa` that are not built yet raise ``UnsupportedProgramError``
on call; `isa.NOT_BUILT` lists them.
"""

import sys

from neuronjax.nki import installation, isa, language
from neuronjax.nki.kernel import Kernel, benchmark, jit, simulate

__all__ = ["Kernel", "benchmark", "install", "isa", "jit", "language", "simulate"]


def install() -> None:
    """Lets `import nki`, `nki.language` and `nki.isa` in this process find these modules.

    Raises:
      ConfigurationError: another package `nki` is installed.
    """
    package = sys.modules[__name__]
    installation.put({"nki": package, "nki.language": language, "nki.isa": isa})
