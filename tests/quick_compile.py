"""XLA without most of its optimiser, for programs that run once, for milliseconds.

Optimising them would take up to two thirds of the time of their tests. The options
`QUICK_COMPILE` are for one program. The tests of models and jobs use them for all programs, in the
processes that they start as well: the Makefile sets the variable `QUICK_COMPILE=1`. Tests of the
platform keep XLA's defaults, which users have; without its fusion emitters XLA rounds twice when it
converts to FP8 and FP4.
"""

from __future__ import annotations

import os

QUICK_COMPILE: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


def is_asked_for() -> bool:
    """Whether the variable QUICK_COMPILE is set."""
    return os.environ.get("QUICK_COMPILE") == "1"


def set_for_all_programs() -> None:
    """Of this process and those that it starts. XLA reads its flags when the first client is made,
    so this comes before anything asks JAX for devices."""
    flags = (f"--{name}={str(value).lower()}" for name, value in QUICK_COMPILE.items())
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *flags)).strip()
