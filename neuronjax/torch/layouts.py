"""Layouts of a module's tensors on a mesh, by rules on their paths."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jax.sharding import PartitionSpec

from neuronjax.errors import ConfigurationError, did_you_mean
from neuronjax.torch.program import Program
from neuronjax.torch.state import State

if TYPE_CHECKING:
    import torch

Rule = Callable[[str, tuple[int, ...]], PartitionSpec | None]
"""The split of a tensor of a path and a shape; None: the next rule decides."""


def specs(program: Program, *rules: Rule | Mapping[str, PartitionSpec]) -> State:
    """The split of each of a module's tensors, as ``in_specs`` and shardings take it.

    Args:
      rules: mappings from patterns of paths, such as ``{"*.q_proj.weight": P("model", None)}``, or
        what `tensor_parallel` and `fully_sharded` return. The first that knows a tensor counts;
        others are split as their DTensors say, or whole on every core.

    ConfigurationError: a pattern of a mapping matches no tensor.
    """
    state = program.types
    paths = [*state.parameters, *state.buffers]
    known = [_of_patterns(rule, paths) if isinstance(rule, Mapping) else rule for rule in rules]

    def spec(path: str, leaf: Any) -> PartitionSpec:
        chosen = (rule(path, leaf.shape) for rule in known)
        own = PartitionSpec() if leaf.sharding is None else leaf.sharding.spec
        return next((split for split in chosen if split is not None), own)

    return State(*({path: spec(path, leaf) for path, leaf in part.items()} for part in state))


def _of_patterns(patterns: Mapping[str, PartitionSpec], paths: list[str]) -> Rule:
    for pattern in patterns:
        if not fnmatch.filter(paths, pattern):
            raise ConfigurationError(
                f"no tensor of the module has a path like {pattern!r}."
                f"{did_you_mean(pattern, paths)}"
            )

    def rule(path: str, _: tuple[int, ...]) -> PartitionSpec | None:
        matching = (spec for pattern, spec in patterns.items() if fnmatch.fnmatch(path, pattern))
        return next(matching, None)

    return rule


def tensor_parallel(module: torch.nn.Module, axis: str, size: int = 1) -> Rule:
    """The plan that a model of transformers has for itself, over an axis of the mesh.

    Keys and values are whole on every core where there are fewer of their heads than the `size` of
    the axis, or where it does not divide them.

    ConfigurationError: the model has no plan.
    """
    plan: Mapping[str, str] = getattr(module, "tp_plan", None) or {}
    if not plan:
        raise ConfigurationError(
            f"{type(module).__name__} has no tp_plan; give rules on the paths of its tensors."
        )

    text = getattr(module, "config", None)
    heads = getattr(text and text.get_text_config(), "num_key_value_heads", None) or size

    def rule(path: str, shape: tuple[int, ...]) -> PartitionSpec | None:
        owner, _, name = path.rpartition(".")
        if heads % size and owner.endswith(_KEYS_AND_VALUES):
            return None
        for pattern, style in plan.items():
            if fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(owner, pattern):
                split = _SPLIT.get(style)
                return None if split is None else _at(axis, split(name, len(shape)), len(shape))
        return None

    return rule


_KEYS_AND_VALUES = ("k_proj", "v_proj")
"""Ends of the paths of projections to heads of which a model may have fewer than of queries."""


def _columns(name: str, rank: int) -> int | None:
    """Splits outputs: rows of a weight, and the bias."""
    return -1 if name.endswith("bias") or rank == 1 else -2


def _rows(name: str, rank: int) -> int | None:
    """Splits inputs: columns of a weight; the bias is added once."""
    return None if name.endswith("bias") or rank == 1 else -1


_SPLIT: Mapping[str, Callable[[str, int], int | None]] = {
    "colwise": _columns,
    "colwise_gather_output": _columns,
    "colwise_rep": _columns,
    "packed_colwise": _columns,
    "rowwise": _rows,
    "rowwise_rep": _rows,
    "rowwise_split_input": _rows,
    "packed_rowwise": _rows,
    "embedding_rowwise": lambda _, rank: 0 if rank == 2 else None,
    "embedding_colwise": lambda _, rank: 1 if rank == 2 else None,
}
"""The dimension that each style of transformers' plans splits; styles about activations and
collectives are not here, as the partitioner finds these."""


def _at(axis: str, dimension: int | None, rank: int) -> PartitionSpec:
    if dimension is None:
        return PartitionSpec()
    names: list[str | None] = [None] * rank
    names[dimension] = axis
    return PartitionSpec(*names)


def fully_sharded(axis: str, size: int) -> Rule:
    """Splits every tensor over an axis of `size` cores, in its first dimension that divides."""

    def rule(_: str, shape: tuple[int, ...]) -> PartitionSpec | None:
        dimension = next((at for at, length in enumerate(shape) if length % size == 0), None)
        return None if dimension is None else _at(axis, dimension, len(shape))

    return rule
