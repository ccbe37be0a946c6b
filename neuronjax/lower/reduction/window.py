"""How the windows of an operation slide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuronjax.hlo.graph import Op


@dataclass(frozen=True)
class Windows:
    """How windows slide: one number for each dimension."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    base_dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    @property
    def is_padded(self) -> bool:
        return any(map(any, self.padding)) or any(dilation != 1 for dilation in self.base_dilations)

    @property
    def sliding(self) -> list[int]:
        """Dimensions in which windows are more than the elements themselves."""
        plain = zip(self.sizes, self.strides, strict=True)
        return [dim for dim, (size, stride) in enumerate(plain) if size != 1 or stride != 1]

    def along(self, axis: int) -> Windows:
        """Windows that slide along one dimension alone, as these do."""

        def only(numbers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(n if dim == axis else 1 for dim, n in enumerate(numbers))

        return Windows(
            only(self.sizes),
            only(self.strides),
            only(self.dilations),
            only(self.base_dilations),
            tuple(pad if dim == axis else (0, 0) for dim, pad in enumerate(self.padding)),
        )


def windows_of(op: Op) -> Windows:
    """The attributes of an operation, with what is left out."""
    a = op.attributes
    sizes = a["window_dimensions"]
    ones = (1,) * len(sizes)
    padding = a.get("padding", np.zeros((len(sizes), 2), int))
    return Windows(
        sizes=sizes,
        strides=a.get("window_strides", ones),
        dilations=a.get("window_dilations", ones),
        base_dilations=a.get("base_dilations", ones),
        padding=tuple((int(low), int(high)) for low, high in padding),
    )
