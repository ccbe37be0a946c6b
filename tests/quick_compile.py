"""XLA without most of its optimiser, for programs that run once, for milliseconds.

Two thirds of the time of such tests would go into optimising them. `QUICK_COMPILE` is for one
program; the rooms of models and jobs run whole with it (`QUICK_COMPILE=1`, as the Makefile sets
it), in processes that they start, too. Tests of the platform itself keep XLA's own settings, which
users have: without the emitters of fusions XLA's conversions to FP8 and FP4 round twice.
"""

from __future__ import annotations

import os

QUICK_COMPILE: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


def is_asked_for() -> bool:
    return os.environ.get("QUICK_COMPILE") == "1"


def set_for_all_programs() -> None:
    """Of this process and those that it starts. XLA reads its flags when the first client is made,
    so this comes before anything asks JAX for devices."""
    flags = (f"--{name}={str(value).lower()}" for name, value in QUICK_COMPILE.items())
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *flags)).strip()
