"""Filling of a buffer with one number."""

from __future__ import annotations

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.chain.elementwise import fill
from neuronjax.lower.operations import number_of
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, walk
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.affine import Affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.operand import Buffer, Immediate

_SPREAD = ("float32", "bfloat16", "float16")
"""Types of which a tile is filled with one number."""


def filled(scope: Scope, target: View, value: Value, op: Op) -> bool:
    """Fills a whole buffer with a value that is one known number; False: it is not."""
    number = number_of(value)
    if number is None or value.dtype.name not in _SPREAD or not target.is_dense:
        return False
    spread(scope, target, float(number), op)
    return True


def spread(scope: Scope, target: View, number: float, op: Op, name: str = "fill") -> None:
    """A kernel that fills a whole buffer, in long runs."""

    def write(builder: KernelBuilder, views: list[View], _: list[Buffer]) -> None:
        buffer, elements = views[0].buffer, views[0].buffer.elements
        width = min(builder.tuning.tile_elements, max(1, elements // PARTITIONS))
        tile = builder.tile((PARTITIONS, width), buffer.dtype, name=name)
        whole = tile_access(tile, [width], [1])
        fill(builder, whole, Immediate(number))
        trips, rest = divmod(elements, PARTITIONS * width)
        if trips:
            with builder.loop(trips) as variable:
                at = variable * (PARTITIONS * width)
                dst = walk(buffer, at, [PARTITIONS * width], [1])
                builder.emit(DmaCopy(dst=dst, src=whole))
        done = trips * PARTITIONS * width
        while rest:
            rows, columns = (rest // width, width) if rest >= width else (1, rest)
            src = tile_access(tile, [columns], [1], partitions=rows)
            dst = walk(buffer, Affine(done), [rows * columns], [1])
            builder.emit(DmaCopy(dst=dst, src=src))
            done, rest = done + rows * columns, rest - rows * columns

    scope.kernel(name, [op], ("fill", repr(number)), [target], [], write)
