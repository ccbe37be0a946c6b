"""Applying the rules to a program and saying what was found."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from neuronjax.errors import LegalityError
from neuronjax.hlo.location import source_line
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.rules import RULES, Rule


@dataclass(frozen=True)
class Finding:
    """One op that a rule matched."""

    rule: Rule
    op: str
    source: str

    def __str__(self) -> str:
        return (
            f"[NCC_{self.rule.code}] {self.rule.what} ({self.op}) at {self.source} is not "
            f"supported by the Neuron compiler; {self.rule.remedy}."
        )


class LegalityWarning(UserWarning):
    """The program runs here but would not compile for the device."""


def findings(module: ir.Module) -> list[Finding]:
    """Every match of every rule, in program order."""
    found: list[Finding] = []

    def visit(op: Any) -> ir.WalkResult:
        if op.name.startswith("stablehlo."):
            found.extend(
                Finding(rule, op.name, source_line(op)) for rule in RULES if rule.matches(op)
            )
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _warn(found: list[Finding]) -> None:
    """One warning per rule, for its first match."""
    first = {finding.rule.what: finding for finding in reversed(found)}
    for finding in first.values():
        warnings.warn(str(finding), LegalityWarning, stacklevel=2)


def _refuse(found: list[Finding]) -> None:
    if found:
        lines = "\n".join(f"  {finding}" for finding in dict.fromkeys(map(str, found)))
        raise LegalityError(f"the program would not compile for the device:\n{lines}")


MODES: dict[str, Callable[[list[Finding]], None]] = {"warn": _warn, "strict": _refuse}


def check(module: ir.Module, policy: Policy) -> None:
    """Applies the policy on legality: ``off``, ``warn`` or ``strict``.

    Raises:
      LegalityError: mode ``strict``, with all findings.
    """
    if policy.legality in MODES:
        MODES[policy.legality](findings(module))
