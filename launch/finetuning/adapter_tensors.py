"""Adapters' parameters as the tensors of PEFT's files, and back.

A tensor of the base may hold several of our maps (queries, keys and values in one); its adapter
then has the ranks of all beside each other, each of which reaches the outputs of its own map:
lora_A [n·R, in] and a block-diagonal lora_B [Σ out, n·R].
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from launch.finetuning.lora import Adapted, Adapter, Layer
from models.weights.plan import Group, stored_shapes
from models.weights.safetensors import StoredTensor
from models.weights.transforms import Shape

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Part:
    """Some tensors and the parameters that they hold."""

    keys: tuple[str, ...]
    parameters: tuple[str, ...]
    stored_shapes: list[Shape]
    split: Callable[[Arrays], list[np.ndarray]]  # tensors to parameters
    join: Callable[[Arrays], list[np.ndarray]]  # and back


def parts_of(adapted: Adapted, stored_ranks: Mapping[str, int] | None = None) -> list[Part]:
    """Every tensor of the model's adapters, and of the layers that are trained whole.

    `stored_ranks`, by layer, are those of files that were written elsewhere.
    """
    shapes = {name: tuple(leaf.shape) for name, leaf in adapted.parameters().items()}
    ranks = stored_ranks or {}
    adapters = [
        _adapter_part(adapter, shapes, ranks.get(adapter.layer.name, adapter.stored_rank))
        for adapter in adapted.adapters
    ]
    return adapters + [_whole_part(group, shapes) for group in adapted.head_groups()]


def rank_of(layer: Layer, kernels: Mapping[str, Shape], a: StoredTensor, b: StoredTensor) -> int:
    """The rank of each of the layer's maps, whose kernels have these shapes, in a stored adapter.

    An adapter that was trained for the tensor as a whole has its rank for every map.
    """
    rank, count = a.shape[0], len(layer.paths)
    if count == 1 or rank % count or len(a.shape) != 2 or len(b.shape) != 2:
        return rank
    widths = [prod(kernels[f"{path}.kernel"]) // a.shape[1] for path in layer.paths]
    if b.shape != (sum(widths), rank):
        return rank
    blocks = np.kron(np.eye(count, dtype=bool), np.ones((1, rank // count), bool))
    outside = ~np.repeat(blocks, widths, axis=0)
    return rank if np.any(b.view()[outside]) else rank // count


def _adapter_part(adapter: Adapter, shapes: Mapping[str, Shape], stored_rank: int) -> Part:
    paths, name = adapter.layer.paths, adapter.layer.name
    a_shapes = [shapes[f"{path}.lora.a"] for path in paths]
    b_shapes = [shapes[f"{path}.lora.b"] for path in paths]
    widths = [prod(shape[1:]) for shape in b_shapes]
    starts = np.cumsum([0, *widths])
    # Where each map's ranks are among the stored ones.
    own = [
        slice(i * adapter.rank, (i + 1) * adapter.rank)
        if stored_rank == adapter.stored_rank
        else slice(None)
        for i in range(len(paths))
    ]

    def split(tensors: Arrays) -> list[np.ndarray]:
        a, b = tensors
        outputs = [b[i:j] for i, j in pairwise(starts)]
        return [
            *(a[ranks].T.reshape(shape) for ranks, shape in zip(own, a_shapes, strict=True)),
            *(
                part[:, ranks].T.reshape(shape)
                for part, ranks, shape in zip(outputs, own, b_shapes, strict=True)
            ),
        ]

    def join(parameters: Arrays) -> list[np.ndarray]:
        a = [x.reshape(-1, adapter.rank).T for x in parameters[: len(paths)]]
        b = np.zeros((starts[-1], adapter.stored_rank), parameters[-1].dtype)
        for x, (i, j), ranks in zip(parameters[len(paths) :], pairwise(starts), own, strict=True):
            b[i:j, ranks] = x.reshape(adapter.rank, -1).T
        return [np.concatenate(a), b]

    return Part(
        (name + LORA_A, name + LORA_B),
        tuple(f"{path}.lora.{part}" for part in "ab" for path in paths),
        [(stored_rank, prod(a_shapes[0][:-1])), (int(starts[-1]), stored_rank)],
        split,
        join,
    )


def _whole_part(group: Group[str], shapes: Mapping[str, Shape]) -> Part:
    own = [shapes[name] for name in group.parameters]
    transform = group.row.transform
    return Part(
        group.tensors[0],
        group.parameters,
        stored_shapes(group, shapes),
        lambda tensors: transform.split(tensors, own),
        transform.join,
    )
