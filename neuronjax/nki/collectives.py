"""`nki.collectives`: exchanges between cores. None is built, and each says so on call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuronjax.nki.refusal import refusing, unknown

_REASON = "a kernel has one core here; use jax.lax's collectives around it"
NOT_BUILT: Mapping[str, str] = dict.fromkeys(
    (
        *("ReplicaGroup", "rank_id"),
        *("all_reduce", "all_gather", "all_gather_v", "reduce_scatter"),
        *("all_to_all", "all_to_all_v"),
        *("collective_permute", "collective_permute_implicit"),
        "collective_permute_implicit_reduce",
        "collective_permute_implicit_current_processing_rank_id",
    ),
    _REASON,
)
"""Function that raises ``UnsupportedProgramError`` on call -> the reason."""


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in NOT_BUILT:
        raise unknown("nki.collectives", name, NOT_BUILT)
    return refusing(f"nki.collectives.{name}", NOT_BUILT[name])


def __dir__() -> list[str]:
    return ["NOT_BUILT", *NOT_BUILT]
