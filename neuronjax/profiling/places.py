"""Kernels by the path that a schedule gives them: through calls and the timed branch of an If."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from neuronjax.program.operand import Kind
from neuronjax.program.program import Call, Function, If, Kernel, Node, Program, Split
from neuronjax.program.walk import children, label
from neuronjax.timing.encoding import taken


@dataclass(frozen=True, slots=True)
class Placed:
    """A kernel at one place in a program; `kinds` are those of HBM buffers under the names that
    the kernel uses. Other physical cores run `others` at the same time.
    """

    name: str
    kernel: Kernel
    kinds: Mapping[str, Kind]
    others: tuple[Kernel, ...] = ()
    #: The user's name scopes of its parts.
    scopes: tuple[str, ...] = ()


def placed(program: Program) -> Iterator[tuple[str, Placed]]:
    """Paths and kernels, in the order of their first runs."""
    functions = {function.name: function for function in program.functions}
    kinds = {buffer.name: buffer.kind for buffer in program.buffers}
    seen: Counter[str] = Counter()
    for path, kernel in _place_nodes(program.body, program.name, functions, kinds):
        seen[path] += 1
        yield path if seen[path] == 1 else f"{path}#{seen[path]}", kernel


def _place_nodes(
    nodes: tuple[Node, ...],
    path: str,
    functions: Mapping[str, Function],
    kinds: Mapping[str, Kind],
    scopes: tuple[str, ...] = (),
) -> Iterator[tuple[str, Placed]]:
    for position, node in enumerate(nodes):
        node_path = f"{path}/{label(node, position)}"
        if isinstance(node, Kernel):
            yield node_path, Placed(node.name, node, kinds, (), scopes or node.scopes)
        elif isinstance(node, Split):
            first = node.kernels[0]
            yield (
                node_path,
                Placed(node.name, first, kinds, node.kernels[1:], scopes or first.scopes),
            )
        elif isinstance(node, Call):
            called = functions[node.function]
            pairs = zip(called.parameters, node.arguments, strict=True)
            passed = {own.name: kinds.get(given.name, given.kind) for own, given in pairs}
            within = {**kinds, **passed}
            yield from _place_nodes(called.body, node_path, functions, within, node.scopes)
        else:
            yield from _place_nodes(_body(node), node_path, functions, kinds, scopes)


def _body(node: Node) -> tuple[Node, ...]:
    return taken(node) if isinstance(node, If) else children(node)


def users_first(sources: tuple[str, ...]) -> tuple[str, ...]:
    """Source lines, with those of installed packages last."""
    foreign = [line for line in sources if "site-packages" in PurePath(line).parts]
    return (*(line for line in sources if line not in foreign), *foreign)


def plain(operations: tuple[str, ...]) -> tuple[str, ...]:
    """Distinct operations without the prefix of their dialect."""
    return tuple(dict.fromkeys(operation.removeprefix("stablehlo.") for operation in operations))
