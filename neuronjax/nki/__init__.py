"""NKI kernels without a chip: traced to a `Program`, run by the emulator.

    @nki.jit
    def kernel(x): ...
    result = nki.simulate(kernel)(x)
    time = nki.benchmark(kernel)(x).total_ns
    report = nki.profile(kernel, "folder")(x)

Loops stay loops where their rounds differ in addresses only. Names that are not built raise
``UnsupportedProgramError`` on call; every module lists its own in `NOT_BUILT`, with the reasons.
"""

import sys

from neuronjax.nki import collectives, installation, isa, language
from neuronjax.nki.kernel import Kernel, benchmark, jit, simulate
from neuronjax.nki.profiling import profile

__all__ = [
    "Kernel", "benchmark", "collectives", "install", "isa", "jit", "language", "profile",
    "simulate",
]  # fmt: skip


def install() -> None:
    """Lets `import nki` and `nki.language`, `isa` and `collectives` find these modules.

    Raises:
      ConfigurationError: another package `nki` is installed.
    """
    package = sys.modules[__name__]
    modules = {"language": language, "isa": isa, "collectives": collectives}
    aliases = {f"nki.{name}": module for name, module in modules.items()}
    installation.alias_modules({"nki": package, **aliases})
