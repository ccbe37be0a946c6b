"""How the tensors of a file and the parameters of a model hold the same numbers.

PyTorch's Linear stores [out, in]; here a kernel is [*in_axes, *out_axes]. A transform works on
views, so that a slice of a parameter costs reading that slice of the file, and it goes both ways.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

Shape = tuple[int, ...]


class Transform(Protocol):
    """Connects the tensors of one row of a key table with its parameters, in the row's order."""

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """The shapes that the tensors have, from those of the parameters."""

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        """The parameters, of these shapes, as views of the tensors."""

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The tensors; the inverse of `split`."""


@dataclass(frozen=True)
class Permuted:
    """One tensor, whose axes stand in another order: parameter axis i is tensor axis axes[i].

    Conv kernels: OIHW -> HWIO is (2, 3, 1, 0), OIK -> KIO is (2, 1, 0).
    """

    axes: tuple[int, ...]

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = shapes
        return [tuple(shape[self.axes.index(i)] for i in range(len(self.axes)))]

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        return [tensors[0].transpose(self.axes)]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [parameters[0].transpose(np.argsort(self.axes))]


@dataclass(frozen=True)
class Same:
    """One tensor equal to the parameter."""

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return list(shapes)

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        return list(tensors)

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        return list(parameters)


@dataclass(frozen=True)
class Flat:
    """One tensor with the numbers in the same order, as one axis: a bias [heads · head_dim]."""

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [(prod(shapes[0]),)]

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        return [tensors[0].reshape(shapes[0])]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [parameters[0].reshape(-1)]


@dataclass(frozen=True)
class Kernel:
    """One tensor [out, in], whose axes are split into heads and the like in the parameter.

    The parameter's axes are `batch_axes` that stand first in both, then `in_axes`, then the
    output's; with `swap=False` the tensor is [in, out] already.
    """

    in_axes: int = 1
    batch_axes: int = 0
    swap: bool = True

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = shapes
        batch, rest = shape[: self.batch_axes], shape[self.batch_axes :]
        flat = (prod(rest[: self.in_axes]), prod(rest[self.in_axes :]))
        return [(*batch, *(flat[::-1] if self.swap else flat))]

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        tensor = tensors[0].swapaxes(-1, -2) if self.swap else tensors[0]
        return [tensor.reshape(shapes[0])]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        (stored,) = self.stored_shapes([parameters[0].shape])
        flat = (*stored[:-2], *(stored[:-3:-1] if self.swap else stored[-2:]))
        tensor = parameters[0].reshape(flat)
        return [tensor.swapaxes(-1, -2) if self.swap else tensor]


@dataclass(frozen=True)
class Pointwise:
    """One tensor [out, in, 1, 1], a convolution of single pixels; the parameter is [in, out]."""

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = shapes
        return [(*shape[::-1], 1, 1)]

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        return [tensors[0][:, :, 0, 0].T]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [parameters[0].T[:, :, None, None]]


@dataclass(frozen=True)
class Fused:
    """One tensor that holds several parameters one after another along `axis`, each as `part`
    would store it: queries, keys and values, or gate and up."""

    part: Transform
    axis: int = 0

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        parts = [self.part.stored_shapes([shape])[0] for shape in shapes]
        fused = list(parts[0])
        fused[self.axis] = sum(part[self.axis] for part in parts)
        return [tuple(fused)]

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        sizes = [self.part.stored_shapes([shape])[0][self.axis] for shape in shapes]
        parts = np.split(tensors[0], np.cumsum(sizes)[:-1], self.axis)
        return [
            self.part.split([part], [shape])[0] for part, shape in zip(parts, shapes, strict=True)
        ]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        parts = [self.part.join([parameter])[0] for parameter in parameters]
        return [np.concatenate(parts, self.axis)]


@dataclass(frozen=True)
class FusedByHeads:
    """One tensor [key_heads · width, *in] that holds several parameters [*in, heads, head_dim]: for
    each key head, of which the last parameter has one, its heads of the first parameter, then of
    the others. So lie queries, keys and values of GPT-NeoX and Falcon, and keys and values of
    DeepSeek."""

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [(sum(prod(shape[-2:]) for shape in shapes), *shapes[0][:-2])]

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        rest, key_heads = shapes[0][:-2], shapes[-1][-2]
        widths = [prod(shape[-2:]) // key_heads for shape in shapes]
        by_heads = tensors[0].reshape(key_heads, sum(widths), *rest)
        parts = np.split(by_heads, np.cumsum(widths)[:-1], axis=1)
        return [
            np.moveaxis(part.reshape(*shape[-2:], *rest), (0, 1), (-2, -1))
            for part, shape in zip(parts, shapes, strict=True)
        ]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        parts = [np.moveaxis(parameter, (-2, -1), (0, 1)) for parameter in parameters]
        key_heads, rest = len(parts[-1]), parts[0].shape[2:]
        by_heads = [part.reshape(key_heads, -1, *rest) for part in parts]
        return [np.concatenate(by_heads, axis=1).reshape(-1, *rest)]


@dataclass(frozen=True)
class Turned:
    """One tensor whose heads turn by other numbers than the parameter's, of which those that turn
    are the first `width` (all: None), the first number of every pair before the second ones. In the
    tensor they begin at `begin`, and where `alternates`, the two of a pair stand side by side.
    `part` says how it lies otherwise. Unless all turn, the parameter is a copy."""

    part: Transform
    width: int | None = None
    begin: int = 0
    alternates: bool = True

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return self.part.stored_shapes(shapes)

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        (heads,) = self.part.split(tensors, shapes)
        if self.width is None:
            return [self._paired(heads, (-1, 2))]
        before, turned, behind = np.split(heads, [self.begin, self.begin + self.width], axis=-1)
        return [np.concatenate([self._paired(turned, (-1, 2)), before, behind], axis=-1)]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.width is None:
            return self.part.join([self._paired(parameters[0], (2, -1))])
        cuts = [self.width, self.width + self.begin]
        turned, before, behind = np.split(parameters[0], cuts, axis=-1)
        return self.part.join(
            [np.concatenate([before, self._paired(turned, (2, -1)), behind], axis=-1)]
        )

    def _paired(self, turned: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        """The heads with the axes of pairs and of their numbers swapped, which have these sizes."""
        if not self.alternates:
            return turned
        return turned.reshape(*turned.shape[:-1], *sizes).swapaxes(-1, -2).reshape(turned.shape)


@dataclass(frozen=True)
class Alternating:
    """One tensor whose `axis` has the numbers of several parameters of one shape in turn: the first
    of each, then the second of each. `part` says how each would be stored."""

    part: Transform
    axis: int = -1

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        stored = list(self.part.stored_shapes(shapes[:1])[0])
        stored[self.axis] *= len(shapes)
        return [tuple(stored)]

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        by_last = np.moveaxis(tensors[0], self.axis, -1)
        parts = [
            np.moveaxis(by_last[..., i :: len(shapes)], -1, self.axis) for i in range(len(shapes))
        ]
        return [
            self.part.split([part], [shape])[0] for part, shape in zip(parts, shapes, strict=True)
        ]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        (stored,) = self.stored_shapes([parameter.shape for parameter in parameters])
        parts = [self.part.join([parameter])[0] for parameter in parameters]
        axis = self.axis % len(stored)
        return [np.stack(parts, axis=axis + 1).reshape(stored)]


@dataclass(frozen=True)
class Leading:
    """One tensor that has axes of size 1 in front of the parameter's, and `behind` them."""

    axes: int
    behind: int = 0

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [self._around(shapes[0])]

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        return [tensors[0].reshape(shapes[0])]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [parameters[0].reshape(self._around(parameters[0].shape))]

    def _around(self, shape: Shape) -> Shape:
        return (*(1,) * self.axes, *shape, *(1,) * self.behind)


SAME, FLAT, KERNEL, OUTPUT_KERNEL = Same(), Flat(), Kernel(), Kernel(in_axes=2)
ALTERNATING = Alternating(SAME)
CONV_1D, CONV_2D, POINTWISE = Permuted((2, 1, 0)), Permuted((2, 3, 1, 0)), Pointwise()
