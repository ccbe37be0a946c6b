"""Functions that are called several times in a row have a twin, which all calls but the first take.

What a kernel has to wait for is what any kernel before it does. After itself, a layer waits for
little: its first weights are used early. After what comes before the first layer it may have to
wait for all of it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from neuronjax.lower.write.rebuild import mapped
from neuronjax.program.program import Call, Function, Kernel, Loop, Node, Program

SUFFIX = "_again"


def twinned(program: Program) -> Program:
    """The program with twins, which are equal to their functions."""
    taken = {function.name for function in program.functions}
    bodies = (program.body, *(function.body for function in program.functions))
    twins: dict[str, str] = {}
    for name in itertools.chain.from_iterable(map(_repeated, bodies)):
        if name not in twins:
            twins[name] = _free(name + SUFFIX, taken)
            taken.add(twins[name])
    if not twins:
        return program
    functions: list[Function] = []
    for function in program.functions:
        body = _with_twins(function.body, twins)
        functions.append(dataclasses.replace(function, body=body))
        if function.name in twins:
            twin = dataclasses.replace(function, name=twins[function.name], body=_copied(body))
            functions.append(twin)
    return dataclasses.replace(
        program, functions=tuple(functions), body=_with_twins(program.body, twins)
    )


def _free(name: str, taken: set[str]) -> str:
    names = itertools.chain((name,), (f"{name}_{number}" for number in itertools.count(2)))
    return next(free for free in names if free not in taken)


def _repeated(nodes: tuple[Node, ...]) -> Iterator[str]:
    """Functions that are called right after themselves."""
    for before, node in zip((None, *nodes), nodes, strict=False):
        if isinstance(node, Loop):
            yield from _repeated(node.body)
        elif isinstance(node, Call) and _is_call_of(before, node.function):
            yield node.function


def _is_call_of(node: Node | None, function: str) -> bool:
    return isinstance(node, Call) and node.function == function


def _with_twins(nodes: tuple[Node, ...], twins: dict[str, str]) -> tuple[Node, ...]:
    changed: list[Node] = []
    for before, node in zip((None, *nodes), nodes, strict=False):
        if isinstance(node, Loop):
            changed.append(dataclasses.replace(node, body=_with_twins(node.body, twins)))
        elif isinstance(node, Call) and _is_call_of(before, node.function):
            changed.append(dataclasses.replace(node, function=twins[node.function]))
        else:
            changed.append(node)
    return tuple(changed)


def _copied(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes, with copies of their kernels."""
    return mapped(nodes, Kernel, dataclasses.replace)
