"""Kernels by the paths that a schedule gives them: calls followed, the longer branch taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from neuronjax.program.operand import Kind
from neuronjax.program.program import Call, Function, If, Kernel, Node, Program, Split
from neuronjax.program.walk import children, label
from neuronjax.timing.streams import taken


@dataclass(frozen=True, slots=True)
class Placed:
    """A kernel at one place, and the kinds of the HBM buffers by its own names of them.

    Other physical cores run `others` beside it.
    """

    name: str
    kernel: Kernel
    kinds: Mapping[str, Kind]
    others: tuple[Kernel, ...] = ()
    #: The user's name scopes of its parts.
    scopes: tuple[str, ...] = ()


def placed(program: Program) -> Iterator[tuple[str, Placed]]:
    """Path and kernel, in the order in which they run first."""
    functions = {each.name: each for each in program.functions}
    kinds = {each.name: each.kind for each in program.buffers}
    seen: Counter[str] = Counter()
    for path, each in _placed(program.body, program.name, functions, kinds):
        seen[path] += 1
        yield path if seen[path] == 1 else f"{path}#{seen[path]}", each


def _placed(
    nodes: tuple[Node, ...],
    path: str,
    functions: Mapping[str, Function],
    kinds: Mapping[str, Kind],
    scopes: tuple[str, ...] = (),
) -> Iterator[tuple[str, Placed]]:
    for position, node in enumerate(nodes):
        here = f"{path}/{label(node, position)}"
        if isinstance(node, Kernel):
            yield here, Placed(node.name, node, kinds, (), scopes or node.scopes)
        elif isinstance(node, Split):
            yield here, Placed(node.name, node.kernels[0], kinds, node.kernels[1:], scopes)
        elif isinstance(node, Call):
            called = functions[node.function]
            pairs = zip(called.parameters, node.arguments, strict=True)
            passed = {own.name: kinds.get(given.name, given.kind) for own, given in pairs}
            within = {**kinds, **passed}
            yield from _placed(called.body, here, functions, within, node.scopes)
        else:
            yield from _placed(_body(node), here, functions, kinds, scopes)


def _body(node: Node) -> tuple[Node, ...]:
    return taken(node) if isinstance(node, If) else children(node)


def users_first(sources: tuple[str, ...]) -> tuple[str, ...]:
    """Lines with those of installed packages last."""
    foreign = [each for each in sources if "site-packages" in PurePath(each).parts]
    return (*(each for each in sources if each not in foreign), *foreign)


def plain(operations: tuple[str, ...]) -> tuple[str, ...]:
    """Operations without their dialect, each once."""
    return tuple(dict.fromkeys(each.removeprefix("stablehlo.") for each in operations))
