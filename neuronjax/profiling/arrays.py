"""The arguments and results of a program by the user's names, and how the mesh splits them."""

from __future__ import annotations

from dataclasses import dataclass

from neuronjax.hlo.module import Argument, Result, Signature
from neuronjax.jaxlib_api.hlo import Tiling, tilings
from neuronjax.profiling.records import Array, Split
from neuronjax.program.operand import Kind


@dataclass(frozen=True, slots=True)
class Interface:
    """What a program has in common with its caller."""

    mesh: tuple[tuple[str, int], ...] = ()
    """Axes and sizes of the mesh that it was partitioned for; none if there is none."""
    arrays: tuple[Array, ...] = ()
    """Arguments, then results."""
    splits: tuple[Split, ...] = ()
    """The different splits of the arrays."""

    @property
    def names(self) -> dict[str, str]:
        """The array of each buffer that ``lower`` makes for an argument or a result."""
        names = {}
        for kind, prefix in ((Kind.ARGUMENT, "arg"), (Kind.RESULT, "res")):
            of_kind = (array.name for array in self.arrays if array.kind == kind.value)
            names.update({f"{prefix}{number}": name for number, name in enumerate(of_kind)})
        return names


def interface(per_core: bytes, signature: Signature, cores: int, partitions: int) -> Interface:
    """The interface of a per-core program; one of replicas (``jax.pmap``) has no whole arrays."""
    values: list[Argument | Result] = [*signature.arguments, *signature.results]
    dimensions = [len(value.type.shape) for value in values]
    count = len(signature.arguments)
    tiled = [Tiling((1,) * rank, (tuple(range(cores)),)) for rank in dimensions]
    if partitions > 1:
        of_each = tilings(per_core, dimensions[:count], dimensions[count:], cores)
        tiled = [*of_each[0], *of_each[1]]
    position = {tiling: number for number, tiling in enumerate(dict.fromkeys(tiled))}
    numbers = [*range(count), *range(len(signature.results))]
    arrays = tuple(
        _array(value, number, tiling, position[tiling])
        for value, number, tiling in zip(values, numbers, tiled, strict=True)
    )
    return Interface(signature.mesh, arrays, tuple(Split(*tiling) for tiling in position))


def _array(value: Argument | Result, number: int, tiling: Tiling, split: int) -> Array:
    kind = Kind.ARGUMENT if isinstance(value, Argument) else Kind.RESULT
    shape = zip(value.type.shape, tiling.tiles, strict=True)
    return Array(
        name=value.name or f"{kind.value} {number}",
        kind=kind.value,
        dtype=value.type.dtype.name,
        shape=tuple(size * tiles for size, tiles in shape),
        nbytes=value.type.nbytes,
        split=split,
    )


NO_INTERFACE = Interface()
"""The interface of a program without arrays that its caller has names for."""
