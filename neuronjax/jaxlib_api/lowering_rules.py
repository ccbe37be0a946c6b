"""JAX's tables of lowering rules, and the primitives that need a rule of the platform's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import ffi
from jax._src import buffer_callback as jax_buffer_callback
from jax._src import callback as jax_callback
from jax._src import debugging as jax_debugging
from jax._src.cudnn import scaled_matmul_stablehlo
from jax._src.interpreters import mlir
from jax._src.lax import lax

CALLBACKS = (
    jax_callback.pure_callback_p,
    jax_callback.io_callback_p,
    jax_debugging.debug_callback_p,
    jax_debugging.debug_print_p,
    jax_buffer_callback.buffer_callback_p,
)
"""Primitives whose rules put a Python function into the module's list of host callbacks."""

DOT_GENERAL = lax.dot_general_p
SCALED_MATMUL = scaled_matmul_stablehlo._scaled_matmul_p
"""``jax.nn.scaled_matmul``; JAX has a rule for GPUs alone."""

PALLAS_CALL = "pallas_call"
"""Name of the primitive of ``pl.pallas_call``, whose module takes long to import."""

Rule = Callable[..., Any]


def platform_rules(platform: str) -> dict[Any, Any]:
    """Primitive -> ``LoweringRuleEntry`` of a platform. Relies on the table in ``mlir``."""
    return mlir._platform_specific_lowerings[platform]


def common_rules() -> dict[Any, Any]:
    """Primitive -> ``LoweringRuleEntry`` of every platform without a rule of its own."""
    return mlir._lowerings


def rule_of(function: Rule) -> Any:
    """The rule that traces ``function`` of jax.numpy, of one result, in place of a primitive."""
    return mlir.LoweringRuleEntry(mlir.lower_fun(function, multiple_results=False), inline=True)


def entry(rule: Rule) -> Any:
    """The row of the table for a rule."""
    return mlir.LoweringRuleEntry(rule, inline=True)


def custom_call(target: str, version: int, configuration: str) -> Rule:
    """The rule that lowers a primitive to a custom call with a string as configuration."""
    return ffi.ffi_lowering(
        target, api_version=version, backend_config=configuration, has_side_effect=False
    )
