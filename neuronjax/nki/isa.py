"""`nki.isa`: instructions of the engines. `NOT_BUILT` names those that only say so on call."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki.building import build
from neuronjax.nki.constants import (
    dge_mode,
    engine,
    matmul_perf_mode,
    oob_mode,
    reduce_cmd,
)
from neuronjax.nki.signatures import SIGNATURES, signature
from neuronjax.nki.trace import current

__all__ = ["NOT_BUILT", "dge_mode", "engine", "matmul_perf_mode", "oob_mode", "reduce_cmd"]

NOT_BUILT = tuple(
    """
    nc_matmul_mx range_select dropout local_gather nonzero_with_count topk sequence_bounds
    quantize_mx dma_transpose dma_compute register_alloc register_load register_move register_store
    core_barrier sendrecv rng rand2 rand_set_state rand_get_state set_rng_seed
    """.split()  # noqa: SIM905
)
"""Instructions that raise ``UnsupportedProgramError`` on call."""


def __getattr__(name: str) -> Callable[..., None]:
    """A function by its name, with the signature of `SIGNATURES`."""
    if name not in SIGNATURES and name not in NOT_BUILT:
        near = difflib.get_close_matches(name, [*SIGNATURES, *NOT_BUILT], 1)
        raise AttributeError(
            f"nki.isa has no {name!r}." + (f" Did you mean {near[0]}?" if near else "")
        )

    def call(*arguments: Any, **keywords: Any) -> None:
        trace = current()
        if name in NOT_BUILT:
            raise UnsupportedProgramError(f"{trace.line()}: nki.isa.{name} is not built yet.")
        try:
            bound = signature(name).bind(*arguments, **keywords)
        except TypeError as error:
            raise UnsupportedProgramError(
                f"{trace.line()}: nki.isa.{name}({SIGNATURES[name]}): {error}."
            ) from None
        bound.apply_defaults()
        trace.add(build(trace, name, dict(bound.arguments)))

    call.__name__ = call.__qualname__ = name
    return call


def __dir__() -> list[str]:
    return [*__all__, *SIGNATURES, *NOT_BUILT]
