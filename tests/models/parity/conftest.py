"""How XLA compiles here: thousands of programs, each of which runs once for milliseconds.

With XLA's own settings two thirds of the time go into optimising them. Set before anything asks
JAX for devices, which is when XLA reads its flags.
"""

import os

QUICK_COMPILE = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
)

os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *QUICK_COMPILE)).strip()
