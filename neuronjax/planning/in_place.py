"""Arguments of which a result is the same value with a part replaced, as a cache is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Literal

from neuronjax.jaxlib_api.tracing import scan_sizes

_REPLACING = frozenset({"dynamic_update_slice", "scatter"})
"""Primitives whose result is their first operand with a part replaced; adding is no replacing."""
_SAME_VALUES = frozenset({
    "copy", "expand_dims", "optimization_barrier", "reshape", "sharding_constraint", "squeeze",
    "transpose",
})  # fmt: skip
"""Primitives whose results have the values of their operands, one each."""


class Origin(NamedTuple):
    """The argument whose values a value has, by its number, and whether a part is replaced."""

    argument: int
    is_replaced: bool


Origins = list[Origin | None]
"""The origins of some values; None for a value that is computed."""


def partly_replaced(jaxpr: Any) -> frozenset[int]:
    """Numbers of the arguments of a jaxpr that it returns with a part replaced."""
    results = _origins_of_results(jaxpr, [Origin(at, False) for at in range(len(jaxpr.invars))])
    return frozenset(origin.argument for origin in results if origin and origin.is_replaced)


def _origins_of_results(jaxpr: Any, of_arguments: Sequence[Origin | None]) -> Origins:
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # a closed one has its constants beside it
    known: dict[Any, Origin | None] = dict(zip(jaxpr.invars, of_arguments, strict=True))

    def origins(values: Sequence[Any]) -> Origins:
        return [None if isinstance(value, Literal) else known.get(value) for value in values]

    for equation in jaxpr.eqns:
        operands = origins(equation.invars)
        if any(operands):
            known.update(zip(equation.outvars, _of_equation(equation, operands), strict=False))
    return origins(jaxpr.outvars)


def _of_equation(equation: Any, operands: Origins) -> Origins:
    """The origins of an equation's first results; of those behind them nothing is known."""
    name, parameters = equation.primitive.name, equation.params
    if name in _REPLACING and operands[0]:
        return [Origin(operands[0].argument, True)]
    if name in _SAME_VALUES:
        return operands
    if name in _LOOPS:
        return _LOOPS[name](parameters, operands)
    inner = next((parameters[key] for key in ("jaxpr", "call_jaxpr") if key in parameters), None)
    taken = len(getattr(inner, "jaxpr", inner).invars) if inner is not None else -1
    return _origins_of_results(inner, operands) if taken == len(operands) else []


def _of_scan(parameters: Mapping[str, Any], operands: Origins) -> Origins:
    """Carries, and the slices of inputs that stacked results replace."""
    constants, carries = scan_sizes(parameters)
    results = _origins_of_results(parameters["jaxpr"], operands)
    held = _same_carries(operands[constants : constants + carries], results[:carries])
    return [*held, *results[carries:]]


def _of_while(parameters: Mapping[str, Any], operands: Origins) -> Origins:
    constants, first = parameters["body_nconsts"], parameters["cond_nconsts"]
    inputs = operands[first:]
    return _same_carries(inputs[constants:], _origins_of_results(parameters["body_jaxpr"], inputs))


def _same_carries(before: Origins, after: Origins) -> Origins:
    """Carries that a trip gives back as the same argument."""
    return [
        new if old and new and old.argument == new.argument else None
        for old, new in zip(before, after, strict=True)
    ]


def _of_cond(parameters: Mapping[str, Any], operands: Origins) -> Origins:
    """What all branches return of the same argument; one that replaces a part is enough."""
    branches = [_origins_of_results(branch, operands[1:]) for branch in parameters["branches"]]
    merged: Origins = []
    for results in zip(*branches, strict=True):
        arguments = {origin.argument if origin else None for origin in results}
        replaced = any(origin.is_replaced for origin in results if origin)
        (argument,) = arguments if len(arguments) == 1 else (None,)
        merged.append(None if argument is None else Origin(argument, replaced))
    return merged


_LOOPS: Mapping[str, Callable[[Mapping[str, Any], Origins], Origins]] = {
    "scan": _of_scan,
    "while": _of_while,
    "cond": _of_cond,
}
