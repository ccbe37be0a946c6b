"""Programs made serial: every instruction of a kernel waits for all before it."""

from __future__ import annotations

import dataclasses

from neuronjax.program.affine import Affine, affine
from neuronjax.program.instruction import Instruction, Semaphore, Signal, Wait
from neuronjax.program.program import If, Kernel, Loop, Node, Program, While
from neuronjax.program.walk import instructions

CHAIN = Semaphore("chain")


def chained(program: Program) -> Program:
    """The program with one semaphore in each kernel that counts its instructions."""
    functions = tuple(
        dataclasses.replace(each, body=_outer(each.body)) for each in program.functions
    )
    return dataclasses.replace(program, body=_outer(program.body), functions=functions)


def _outer(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(_outer_node(node) for node in nodes)


def _outer_node(node: Node) -> Node:
    if isinstance(node, Kernel):
        body, _ = _inner(node.body, affine())
        return dataclasses.replace(node, body=body, semaphores=(CHAIN,))
    if isinstance(node, While):
        return dataclasses.replace(node, condition=_outer(node.condition), body=_outer(node.body))
    return node


def _inner(nodes: tuple[Node, ...], done: Affine) -> tuple[tuple[Node, ...], Affine]:
    """Nodes that begin when `done` instructions have executed, and how many have after them."""
    made = []
    for node in nodes:
        if isinstance(node, Loop):
            assert isinstance(node.trips, int)
            _, size = _inner(node.body, affine())
            body, _ = _inner(node.body, done + affine(**{node.variable: size.base}))
            made.append(dataclasses.replace(node, body=body))
            done += size.base * node.trips
        elif isinstance(node, If):
            then, after = _inner(node.then, done)
            otherwise, other = _inner(node.otherwise, done)
            assert after == other
            made.append(dataclasses.replace(node, then=then, otherwise=otherwise))
            done = after
        else:
            assert isinstance(node, Instruction)
            made.append(
                dataclasses.replace(node, waits=(Wait(CHAIN, done),), signals=(Signal(CHAIN),))
            )
            done += 1
    return tuple(made), done


def without_wait(program: Program, path: str) -> Program:
    """The program without the waits of the instruction at a path of positions and kernel names."""
    found = [node for place, node in instructions(program) if place.path == path]
    assert len(found) == 1, path
    body = _replaced(program.body, found[0])
    return dataclasses.replace(program, body=body)


def _replaced(nodes: tuple[Node, ...], old: Instruction) -> tuple[Node, ...]:
    made: list[Node] = []
    for node in nodes:
        if node is old:
            made.append(dataclasses.replace(old, waits=()))
        elif isinstance(node, Kernel | Loop):
            made.append(dataclasses.replace(node, body=_replaced(node.body, old)))
        else:
            made.append(node)
    return tuple(made)
