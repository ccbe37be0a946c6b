"""Gathers and scatters whose indices, known at compile time, lie outside their operand.

The compiler checks indices that are constants or come from an iota (release 2.29 and later);
before that, and for unknown indices, the access fails at run time with status 1006.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.jaxlib_api.mlir import ir
from neuronjax.jaxlib_api.mlir import stablehlo as dialect
from neuronjax.legalize.rules.operators import KNOWN_ISSUES
from neuronjax.legalize.rules.rule import NEVER, Check, Rule, Severity, Site, stablehlo

_ERRORS = "Neuron compiler error codes"
_CHECKED_SINCE = (2, 29)


@dataclass(frozen=True)
class Access:
    """How a gather or scatter addresses its operand."""

    operand: Sequence[int]
    """The operand's shape."""
    indices: ir.Value
    """The value that holds the indices."""
    index_axis: int
    """The axis of ``indices`` that holds the components of an index; the rank if it is scalar."""
    dimensions: Sequence[int]
    """The operand's dimension for every component of an index."""
    window: Sequence[int]
    """The number of elements of an access along every dimension of the operand."""


def _gather(op: ir.Operation) -> Access:
    numbers = dialect.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    return Access(
        operand=op.operands[0].type.shape,
        indices=op.operands[1],
        index_axis=numbers.index_vector_dim,
        dimensions=numbers.start_index_map,
        window=list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"])),
    )


def _scatter(op: ir.Operation) -> Access:
    numbers = dialect.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    inputs = (len(op.operands) - 1) // 2
    shape, updates = op.operands[0].type.shape, op.operands[inputs + 1].type.shape
    whole = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    sizes = iter([updates[axis] for axis in numbers.update_window_dims])
    return Access(
        operand=shape,
        indices=op.operands[inputs],
        index_axis=numbers.index_vector_dim,
        dimensions=numbers.scattered_dims_to_operand_dims,
        window=[1 if axis in whole else next(sizes) for axis in range(len(shape))],
    )


_ACCESS: dict[str, Callable[[ir.Operation], Access]] = {
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
}


def _outside(site: Site) -> str | None:
    access = _ACCESS[site.op.name](site.op)
    known = site.constant(access.indices)
    if known is None or known.size == 0:
        return None
    if access.index_axis == known.ndim:
        known = known[..., None]
    components = np.moveaxis(known, access.index_axis, 0)
    for values, dimension in zip(components, access.dimensions, strict=True):
        low, high = int(values.min()), int(values.max())
        allowed = access.operand[dimension] - access.window[dimension] + 1
        if low < 0 or high >= allowed:
            return (
                f"index values in range [{low}, {high + 1}), while dimension {dimension} of the "
                f"operand only allows [0, {allowed})"
            )
    return None


def _is_iota(site: Site) -> bool:
    """Whether indices are made from an iota, rather than constants alone."""
    seen, waiting = 0, [(_ACCESS[site.op.name](site.op).indices, site.path)]
    while waiting and seen < 100:
        seen += 1
        value, path = site.program.graph.origin(*waiting.pop())
        if isinstance(value, ir.BlockArgument):
            continue
        if value.owner.name == "stablehlo.iota":
            return True
        waiting += [(operand, path) for operand in value.owner.operands]
    return False


def _from(iota: bool) -> Check:
    def check(site: Site) -> str | None:
        detail = _outside(site)
        return detail if detail and _is_iota(site) is iota else None

    return check


_REMEDY = (
    "Keep indices below the size of the dimension; an embedding of positions needs as many rows as "
    "the sequence is long (max_position_embeddings >= sequence_length)."
)

RULES = (
    Rule(
        code="EVRF056",
        what="gathers with an iota out of bounds",
        ops=stablehlo("gather"),
        check=_from(iota=True),
        sdks=(_CHECKED_SINCE, NEVER),
        message="Operation gather encountered out of bound indices",
        remedy=_REMEDY,
        source=f"{_ERRORS}, NCC_EVRF056",
    ),
    Rule(
        code="EVRF031",
        what="scatters with an iota out of bounds",
        ops=stablehlo("scatter"),
        check=_from(iota=True),
        message="The compiler encountered a scatter out-of-bounds error",
        remedy=_REMEDY,
        source=f"{_ERRORS}, NCC_EVRF031",
    ),
    Rule(
        code="ESMP002",
        what="gathers and scatters with a constant out of bounds",
        ops=stablehlo("gather", "scatter"),
        check=_from(iota=False),
        sdks=(_CHECKED_SINCE, NEVER),
        message="A constant index is out of bounds",
        remedy=_REMEDY,
        source="compiler release notes 2.29 (index bounds checking for constant tensors)",
    ),
    Rule(
        code="RT_OUT_OF_BOUNDS",
        what="indices out of bounds, before SDK 2.29",
        ops=stablehlo("gather", "scatter"),
        check=_outside,
        severity=Severity.WARNING,
        sdks=((0,), _CHECKED_SINCE),
        message="Out of bound access for scatter/gather ends the run with NRT status 1006",
        remedy=_REMEDY,
        source=KNOWN_ISSUES,
    ),
)
