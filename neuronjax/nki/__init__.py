"""NKI kernels without a chip: traced to a `Program`, run by the emulator.

    @nki.jit
    def kernel(x): ...
    result = nki.simulate(kernel)(x)
    time = nki.benchmark(kernel)(x).total_ns

Loops are written out. Names of `nki.isa` that are not built yet raise ``UnsupportedProgramError``
on call; `isa.NOT_BUILT` lists them.
"""

from neuronjax.nki.kernel import Kernel, benchmark, jit, simulate

__all__ = ["Kernel", "benchmark", "jit", "simulate"]
