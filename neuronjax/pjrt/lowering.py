"""Lowering rules for platform ``neuron``.

JAX has rules for linear algebra, FFT, random bits, callbacks and more under ``cpu`` that an unknown
platform does not get. The program runs on XLA:CPU here, so they are all valid: a lookup for
``neuron`` falls back to ``cpu``, also for rules registered later. Host callbacks are numbered by
the project's registry, because the C API has no way to pass Python functions. What JAX has for GPUs
alone but the chip can do has its rule here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neuronjax import mx
from neuronjax.hlo.custom_calls import NATIVE_KERNEL
from neuronjax.host import callbacks
from neuronjax.jaxlib_api import kernel_calls, lowering_rules
from neuronjax.lazy import Lazy

if TYPE_CHECKING:
    from neuronjax import native_kernels
else:
    native_kernels = Lazy("neuronjax.native_kernels")

FALLBACK = "cpu"

COMMON_PRIMITIVES = frozenset({lowering_rules.DOT_GENERAL})
"""Primitives with the rule for all platforms: that for ``cpu`` refuses what the chip takes."""

CHIP_RULES = {lowering_rules.SCALED_MATMUL: lowering_rules.rule_of(mx.scaled_matmul_of_rows)}
"""Primitives that ``cpu`` lacks: they become plain StableHLO."""


class _CallbackNumbers(list[Any]):
    """Stands in for a module's list of host callbacks: an index is a registry number."""

    def __init__(self, context: Any) -> None:
        super().__init__()
        self._context = context
        self._number = 0

    def append(self, function: Any) -> None:
        self._number = callbacks.register(function)
        self._context.add_keepalive(function)

    def __len__(self) -> int:
        return self._number + 1


def _as_cpu(rule: Any) -> Any:
    """A rule that sees platform ``cpu`` and the project's callback registry."""

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        context = ctx.module_context
        host_callbacks = _CallbackNumbers(context)
        cpu_context = context.replace(
            platforms=(FALLBACK,), backend=None, host_callbacks=host_callbacks
        )
        cpu_ctx = dataclasses.replace(ctx, module_context=cpu_context)
        outputs = rule(cpu_ctx, *args, **params)
        if cpu_ctx.tokens_out is not None and ctx.tokens_out is None:
            ctx.set_tokens_out(cpu_ctx.tokens_out)
        return outputs

    return lower


def _entry_as_cpu(entry: Any) -> Any:
    return dataclasses.replace(entry, rule=_as_cpu(entry.rule))


def _is_pallas(primitive: Any) -> bool:
    return getattr(primitive, "name", None) == lowering_rules.PALLAS_CALL


def _interpret_kernels(entry: Any) -> Any:
    """The rule of Pallas for kernels that are interpreted, in which it never asks for a platform;
    of others it would say that there is no rule at all."""

    def lower(ctx: Any, *args: Any, interpret: Any, **params: Any) -> Any:
        if not interpret:
            raise ValueError(
                "Only interpret mode is supported on the neuron backend, as on the CPU backend: "
                "pass interpret=True to pallas_call to compute the kernel's values, or write the "
                "kernel in jax.numpy."
            )
        return entry.rule(ctx, *args, interpret=interpret, **params)

    return dataclasses.replace(entry, rule=lower)


def _native(
    ctx: Any, *args: Any, function: native_kernels.NativeKernel, results: Sequence[Any]
) -> Any:
    """The rule of kernels of NKI, which become the compiler's calls."""
    return lowering_rules.custom_call(
        NATIVE_KERNEL, native_kernels.API_VERSION, function.configuration()
    )(ctx, *args)


class NeuronRules(dict[Any, Any]):
    """Primitive -> rule; what is missing is taken from ``cpu``."""

    def __init__(self, cpu_rules: dict[Any, Any], common_rules: dict[Any, Any]) -> None:
        super().__init__()
        self._cpu = cpu_rules
        self._common = common_rules
        for primitive in lowering_rules.CALLBACKS:
            self[primitive] = _entry_as_cpu(cpu_rules.get(primitive) or common_rules[primitive])
        self[kernel_calls.KERNEL_CALL] = lowering_rules.entry(_native)
        for primitive, rule in CHIP_RULES.items():
            self[primitive] = rule

    def __contains__(self, primitive: object) -> bool:
        if super().__contains__(primitive) or _is_pallas(primitive):
            return True
        return primitive in self._cpu and primitive not in COMMON_PRIMITIVES

    def __missing__(self, primitive: Any) -> Any:
        if _is_pallas(primitive):
            return _interpret_kernels(self._common[primitive])
        return _entry_as_cpu(self._cpu[primitive])


def rules() -> NeuronRules:
    """The platform's row in JAX's table of rules."""
    return NeuronRules(lowering_rules.platform_rules(FALLBACK), lowering_rules.common_rules())
