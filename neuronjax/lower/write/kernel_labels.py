"""What a kernel is called, and which of the user's scopes it belongs to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from neuronjax.hlo.graph import Op
from neuronjax.machine.specs import PARTITIONS

_USERS = {"counted_update_slice": "dynamic_update_slice", "chosen_product": "dot_general"}
"""An operation of the compiler's own -> what users know it by."""


def operation_of(op: Op) -> str:
    """What a profile calls an operation: as StableHLO does."""
    return _USERS.get(op.name, op.name)


def scope_of(operations: Iterable[Op]) -> str:
    """The scope that does most of the work of a kernel, among those that have a name."""
    work: Counter[str] = Counter()
    for op in operations:
        if op.scope:
            work[op.scope] += _work(op)
    return max(work, key=work.__getitem__, default="")


def _work(op: Op) -> int:
    """About how long an operation takes: elements that lanes go through."""
    sizes = [math.prod(value.spec.shape) for value in (*op.operands, *op.results)]
    if op.name not in ("dot_general", "chosen_product"):
        return max(sizes, default=0)
    return math.isqrt(math.prod(sizes)) // PARTITIONS  # [m, k] @ [k, n]: the root is m · k · n


def chain_name(operations: Iterable[Op]) -> str:
    """A name that says what a kernel does: up to three of its operations."""
    names = list(dict.fromkeys(op.name.rpartition(".")[2] for op in operations))
    dull = {"convert", "select", "compare", "and", "or"}
    telling = [name for name in names if name not in dull] or names
    return "_".join(telling[:3])
