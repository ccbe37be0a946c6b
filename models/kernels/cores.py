"""The cores that run a kernel: those of a mesh, and the physical ones of a logical core."""

from typing import Any

import jax
import nki.language as nl

from models.kernels.tiles import ROWS
from models.varying import vary, varying_axes


def on_cores(kernel: Any, tiles: int) -> Any:
    """The kernel with a program on every physical core of a logical core, as `kernel[2]`, if its
    tiles, which programs divide among themselves, are enough for all."""
    cores = getattr(jax.devices()[0], "lnc", 1)
    return kernel[cores] if 1 < cores <= tiles else kernel


def tiles_of(rows: int) -> int:
    """How many tiles rows fill."""
    return -(-rows // ROWS)


def own_part(total: int, step: int = 1) -> slice:
    """The share of a program in `total` rows or other things, in steps that stay together."""
    steps, programs, program = -(-total // step), nl.num_programs(), nl.program_id()
    first, last = (steps * number // programs * step for number in (program, program + 1))
    return slice(min(first, total), min(last, total))


def varying_as(x: jax.Array, *others: jax.Array) -> list[jax.Array]:
    """Arrays that are the same on some cores of a mesh as such that may differ wherever `x` does:
    their gradients on those cores are added up."""
    axes = tuple(sorted(varying_axes(x)))
    return [vary(other, axes) for other in others]
