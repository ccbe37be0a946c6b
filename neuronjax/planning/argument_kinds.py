"""What the arguments of a program are, by its structure and never by their names.

A kind comes, in this order, from the user; from the type of a node of the arguments' trees, which
is a variable of Flax NNX, a state of optax, or what such a state mirrors; or from what the program
does with a donated argument that it returns: replace parts of it (a cache) or all (a state).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from neuronjax.errors import ConfigurationError, did_you_mean, quoted
from neuronjax.planning.in_place import partly_replaced

WEIGHTS, OPTIMIZER, CACHE, STATISTICS, INPUTS, STATE, ARGUMENTS = ARGUMENT_KINDS = (
    "weights", "optimizer", "cache", "statistics", "inputs", "state", "arguments",
)  # fmt: skip
"""`statistics` are those of batch norms, `state` is what else a program takes over and returns, and
`arguments` are those of which nothing is known."""

_NNX = {"Param": WEIGHTS, "OptState": OPTIMIZER, "Cache": CACHE, "BatchStat": STATISTICS}
"""Variable types of Flax NNX; types that derive from them, such as LoRAParam, count as they do."""


@dataclass(frozen=True)
class Argument:
    """An argument of a program: a leaf of the trees that the function takes."""

    path: str
    """The path as one would write it, such as ``state.optimizer[0].mu['head.table']``."""
    kind: str
    donated: bool


def arguments_of(
    tree: tuple[Any, ...], paths: Sequence[str], donated: Sequence[bool], jaxpr: Any,
    given: Mapping[str, str],
) -> list[Argument]:  # fmt: skip
    """All leaves of a function's arguments.

    Args:
      tree: the arguments, or a tree like them.
      paths, donated: of each leaf.
      jaxpr: the function's closed jaxpr.
      given: the user's kinds, by path or by the path of a whole part.

    ConfigurationError: `given` names another kind, or a path that no argument begins with.
    """
    _check(given, paths)
    typed = list(_typed_kinds(tree))
    used = _used_kinds(donated, jaxpr)
    return [
        Argument(path, _given_kind(path, given) or kind or used[at], donated[at])
        for at, (path, kind) in enumerate(zip(paths, typed, strict=True))
    ]


def _check(given: Mapping[str, str], paths: Sequence[str]) -> None:
    for part, kind in given.items():
        if kind not in ARGUMENT_KINDS:
            raise ConfigurationError(
                f"kinds: {quoted(kind)} of {part} is not one of {', '.join(ARGUMENT_KINDS)}."
                f"{did_you_mean(str(kind), ARGUMENT_KINDS)}"
            )
        if not any(_is_within(path, part) for path in paths):
            roots = dict.fromkeys(path.partition("[")[0].partition(".")[0] for path in paths)
            raise ConfigurationError(
                f"kinds: no argument is called {quoted(part)} or begins with it; the arguments are "
                f"{', '.join(roots) or 'none'}."
            )


def _is_within(path: str, part: str) -> bool:
    return path == part or (path.startswith(part) and path[len(part)] in ".[")


def _given_kind(path: str, given: Mapping[str, str]) -> str | None:
    """The kind of the longest part that has the path."""
    parts = [part for part in given if _is_within(path, part)]
    return given[max(parts, key=len)] if parts else None


def _typed_kinds(tree: Any) -> Iterator[str | None]:
    """A kind for each leaf, where a type of a node above it says it; the outermost counts."""
    states = [node for node in _cut(tree, _node_kind) if _is_optax(node)]
    mirrored = {_form(part) for state in states for part in state if not _is_leaf(part)}

    def kind(node: Any) -> str | None:
        return _node_kind(node) or (
            WEIGHTS if mirrored and not _is_leaf(node) and _form(node) in mirrored else None
        )

    for node in _cut(tree, kind):
        yield from [kind(node)] * len(jax.tree.leaves(node))


def _cut(tree: Any, kind: Any) -> list[Any]:
    """The outermost nodes that have a kind, and the leaves outside them."""
    return jax.tree.leaves(tree, is_leaf=lambda node: kind(node) is not None)


def _node_kind(node: Any) -> str | None:
    if _is_optax(node):
        return OPTIMIZER
    bases = (base for base in type(node).__mro__ if base.__module__.startswith("flax.nnx."))
    return next((_NNX[base.__name__] for base in bases if base.__name__ in _NNX), None)


def _is_optax(node: Any) -> bool:
    """Whether it is a state of optax: these are named tuples without a common base."""
    return isinstance(node, tuple) and type(node).__module__.partition(".")[0] == "optax"


def _form(node: Any) -> tuple[Any, tuple[Any, ...]]:
    """What the parameters and their moments have in common."""
    leaves, structure = jax.tree.flatten(node)
    return structure, tuple(getattr(leaf, "shape", ()) for leaf in leaves)


def _is_leaf(node: Any) -> bool:
    return jax.tree_util.all_leaves([node])


def _used_kinds(donated: Sequence[bool], jaxpr: Any) -> list[str]:
    """What each leaf is by what the program does with it."""
    results = Counter((aval.shape, aval.dtype) for aval in jaxpr.out_avals)
    parts = partly_replaced(jaxpr.jaxpr)
    kinds = []
    for at, (aval, is_donated) in enumerate(zip(jaxpr.in_avals, donated, strict=True)):
        is_returned = is_donated and results[aval.shape, aval.dtype] > 0
        results[aval.shape, aval.dtype] -= is_returned
        kinds.append((CACHE if at in parts else STATE) if is_returned else ARGUMENTS)
    return kinds
