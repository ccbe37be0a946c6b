"""How many instructions a program runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Call, Loop, Node, Program
from neuronjax.program.walk import children


def count_instructions(
    program: Program,
    key: Callable[[Instruction], str | Engine | None] = lambda instruction: instruction.mnemonic,
) -> Counter[str | Engine | None]:
    """How many instructions a run executes, by mnemonic or another `key`.

    Instructions in loops count once per trip. Both branches of a condition count. `while` counts
    once, and a loop whose trips are in a register by its limit or, without one, once. Functions
    count for every call.
    """
    bodies = {function.name: function.body for function in program.functions}

    def count(nodes: tuple[Node, ...], times: int) -> Counter[str | Engine | None]:
        total: Counter[str | Engine | None] = Counter()
        for node in nodes:
            if isinstance(node, Instruction):
                total[key(node)] += times
            elif isinstance(node, Call):
                total += count(bodies[node.function], times)
            else:
                trips = (node.most_trips if isinstance(node, Loop) else None) or 1
                total += count(children(node), times * trips)
        return total

    return count(program.body, 1)
