"""`nki.compiler`: options of the Neuron compiler, which have no effect here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """What the compiler may do after a kernel has been traced."""

    address_rotation: bool | None = None
    non_ssa_legalization: bool | None = None
    dead_code_elim: bool | None = None
    barrier_check: bool | None = None


@dataclass(frozen=True, kw_only=True)
class SpecializationConfig:
    """How a kernel is traced."""

    allow_nested_config_override: bool = False
