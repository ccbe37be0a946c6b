"""Whether the hardware can run a program: a table of rules, each with its public source.

A rule is a function of a program or of one instruction; `rules` has them, by concern. Rules are
silent about what is only known at run time, such as addresses in registers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neuronjax.program.program import Program
from neuronjax.program.rules import (
    access,
    accumulation,
    collectives,
    cores,
    dataflow,
    engines,
    memory,
    neighbours,
    semaphores,
    shapes,
    structure,
    tensor,
    types,
)
from neuronjax.program.rules.forms import Forms
from neuronjax.program.rules.site import Check, InstructionCheck, Site, Violation
from neuronjax.program.walk import instructions

_ARCH = 'Neuron docs, "Trainium/Inferentia2 architecture guide"'
_ISA = "NKI ISA, the page of the instruction"
_LNC = 'Neuron docs, "Logical NeuronCore"'
UNORDERED = "written once"
"""The rule that right programs may break, if what both cores write agrees: the order tells."""
_GROUPS = "Set start and stop; in NKI, accumulate=False on the first product of a sum."
_FORM = "the form of a program"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its name, where it is documented, and what to do if it is broken."""

    name: str
    check: Check
    source: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule, where, what is there, what is allowed, and what to do."""

    path: str
    rule: str
    actual: str
    allowed: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.actual}; allowed: {self.allowed} ({self.rule}). {self.remedy}"


STRUCTURE: tuple[Rule, ...] = (
    Rule("unique names", structure.unique_names, _FORM, "Rename one of them."),
    Rule("declared", structure.declared, _FORM, "Declare it, or use what is declared."),
    Rule("variables", structure.variables, _FORM, "Move the instruction, or drop the variable."),
    Rule("nesting", structure.nesting, _FORM, "Put instructions in kernels; do not nest kernels."),
    Rule("calls", structure.calls, _FORM, "Declare the function first, and pass its buffers."),
    Rule("roles", structure.roles, _FORM, "Copy the value to or from HBM."),
    Rule("splits", cores.splits, _LNC, "Compile for LNC 2."),
    Rule("target", engines.target, _LNC, "Choose another target."),
    Rule("ranks", structure.ranks, _FORM, "Name only ranks that run the program."),
)
"""Rules on which the others rely; if one of them is broken, `verify` checks no others."""

MEMORY: tuple[Rule, ...] = (
    Rule("capacity", memory.capacity, _ARCH, "Use smaller or fewer tiles."),
    Rule("alignment", memory.alignment, _ARCH, "Round the address up."),
    Rule("slots", memory.slots, _FORM, "Space the slots further apart."),
    Rule("constants", memory.constants, _FORM, "Give the constant its bytes."),
)
"""Rules about the location of buffers, on which the emulator relies too."""

RULES: tuple[Rule, ...] = (
    Rule("start partition", InstructionCheck(access.start_partition), _ARCH, "Move the tile."),
    Rule("partitions", InstructionCheck(access.partitions), _ARCH, "Split the access."),
    Rule("writable", InstructionCheck(access.writable), _FORM, "Write to another tensor."),
    Rule("bounds", InstructionCheck(access.bounds), _ARCH, "Peel the remainder off the loop."),
    Rule("access pattern", InstructionCheck(access.pattern), _ARCH, "Split the access."),
    *MEMORY,
    Rule("overlap", memory.overlap, _FORM, "Move one of them, or declare an alias."),
    Rule("matmul shape", InstructionCheck(tensor.matmul_shape), _ISA, "Split the product."),
    Rule("matmul tile", InstructionCheck(tensor.tile), _ISA, "Use the whole array."),
    Rule("PSUM bank", InstructionCheck(tensor.psum_bank), _ISA, "Align the tile to a bank."),
    Rule("matmul types", InstructionCheck(tensor.matmul_types), _ISA, "Cast the operands first."),
    Rule("MX types", InstructionCheck(tensor.matmul_mx_types), _ISA, "Quantize with quantize_mx."),
    Rule("transposes", InstructionCheck(tensor.transposes), _ISA, "Split it; keep the type."),
    Rule("generation", InstructionCheck(engines.generation), _ISA, "Use only what the chip has."),
    Rule("engine", InstructionCheck(engines.engine), _ISA, "Choose another engine."),
    Rule("memories", InstructionCheck(engines.memories), _ISA, "Use a tile there, and copy."),
    Rule("descriptors", InstructionCheck(engines.descriptors), _ISA, "Choose another dge_mode."),
    Rule("queues", InstructionCheck(engines.queues), _ISA, "Choose another queue or priority."),
    Rule("pairs of cores", InstructionCheck(engines.pairs_of_cores), _ISA, "Compile for LNC 2."),
    Rule("shapes", InstructionCheck(shapes.shapes), _ISA, "Give all operands the same shape."),
    Rule("reductions", InstructionCheck(shapes.reductions), _ISA, "Reduce the last dimensions."),
    Rule("limits", InstructionCheck(shapes.limits), _ISA, "Split the work, or pad it."),
    Rule("element types", InstructionCheck(types.element_types), _ISA, "Cast with tensor_copy."),
    Rule("operators", InstructionCheck(types.operators), _ISA, "Use two instructions."),
    Rule("reduced types", InstructionCheck(types.reduced_types), _ISA, "Use float32."),
    Rule(
        "groups", InstructionCheck(collectives.groups), "NKI collectives",
        "List every rank once.",
    ),
    Rule(
        "collectives", InstructionCheck(collectives.collectives), "NKI collectives",
        "Copy to HBM, or use one collective for each tensor.",
    ),
    Rule(
        "uneven sizes", InstructionCheck(collectives.uneven), "NKI collectives",
        "Use all_gather or all_to_all, or what is allowed.",
    ),
    Rule("cores apart", cores.apart, _LNC, "Run one after the other."),
    Rule(UNORDERED, cores.written_once, _LNC, "Run one after the other."),
    Rule("cores alone", cores.alone, _LNC, "Use another kernel, or HBM."),
    Rule("cores' registers", cores.registers, _LNC, "Set it in all kernels."),
    Rule("uninitialised", dataflow.uninitialised, "NKI simulator guide", "Write it, or memset it."),
    Rule("registers", dataflow.registers, "NKI ISA register_alloc", "Load or move into it."),
    Rule("accumulation", accumulation.accumulation, "NKI ISA nc_matmul", _GROUPS),
    Rule("semaphores", semaphores.semaphores, _ARCH, "Match signals and waits."),
    Rule("deadlock", semaphores.deadlock, _ARCH, "Remove the circular wait."),
    Rule("overlaps", neighbours.overlaps, _ARCH, "Start it after all before it end."),
    Rule("neighbours", neighbours.ordered, _ARCH, "Make it wait for the stream."),
)  # fmt: skip
"""Every other rule."""


_ASSEMBLED = (
    "declared",
    "calls",
    "overlap",
    "semaphores",
    "deadlock",
    *(rule.name for rule in MEMORY),
)
ASSEMBLED = tuple(rule for rule in (*STRUCTURE, *RULES) if rule.name in _ASSEMBLED)
"""Rules about a program as a whole that are cheap enough to check in every compilation."""


def verify(program: Program) -> tuple[Finding, ...]:
    """All findings, in the order of the rules; if there are none, the chip can run the program."""
    return _findings(program, STRUCTURE) or _findings(program, RULES)


def verify_assembled(program: Program) -> tuple[Finding, ...]:
    """Findings about a program as a whole: declarations, memory and semaphores.

    These rules are cheap enough to check every compiled program: about 3 % of the time to lower it.
    """
    return _findings(program, ASSEMBLED)


def verify_form(program: Program) -> tuple[Finding, ...]:
    """Findings by the rules on which the emulator relies; if there are none, it can load it."""
    return _findings(program, STRUCTURE) or _findings(program, MEMORY)


def _findings(program: Program, rules: Iterable[Rule]) -> tuple[Finding, ...]:
    """Findings in the order of the rules; checks of instructions share one traversal."""
    listed = list(rules)
    by_rule: list[list[Violation]] = [[] for _ in listed]
    local: list[tuple[InstructionCheck, list[Violation]]] = []
    for rule, violations in zip(listed, by_rule, strict=True):
        if isinstance(rule.check, InstructionCheck):
            local.append((rule.check, violations))
        else:
            violations += rule.check(program)
    if local:
        forms = Forms(program, [check for check, _ in local])
        for place, instruction in instructions(program):
            for index in forms.broken(place, instruction):
                check, violations = local[index]
                violations += check.at(Site(program, place, instruction))
    return tuple(
        Finding(violation.path, rule.name, violation.actual, violation.allowed, rule.remedy)
        for rule, violations in zip(listed, by_rule, strict=True)
        for violation in violations
    )
