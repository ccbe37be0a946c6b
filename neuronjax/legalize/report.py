"""Applying the rules to a program and saying what was found."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from neuronjax.errors import LegalityError
from neuronjax.hlo.location import UNKNOWN, Frame
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.rules import RULES
from neuronjax.legalize.rules.rule import Cores, Program, Rule, Severity, Site

logger = logging.getLogger("neuronjax.legality")
"""Findings that are logged are records here, with the ``Finding`` as attribute ``finding``; so are,
at level debug, the programs that were looked at, with their names as attribute ``program``."""

_LEVELS = {
    Severity.ERROR: logging.ERROR,
    Severity.WARNING: logging.WARNING,
    Severity.NOTE: logging.INFO,
}
_DIALECTS = ("stablehlo.", "mhlo.", "chlo.")


@dataclass(frozen=True)
class Finding:
    """One op, at one line of the user's, that a rule matched."""

    rule: Rule
    op: str
    source: Frame | None
    """The user's line; ``None`` if the program does not say."""
    detail: str
    """What was found in particular; may be empty."""

    @property
    def where(self) -> str:
        """``file:line``."""
        return str(self.source or UNKNOWN)

    @property
    def problem(self) -> str:
        """The compiler's words and what they are about."""
        return f"{self.rule.message}: {self.detail}" if self.detail else self.rule.message

    def __str__(self) -> str:
        return (
            f"[{self.rule.label}] {self.problem} ({self.rule.what}; {self.op} at {self.where}). "
            f"{self.rule.remedy}"
        )


class LegalityWarning(UserWarning):
    """The program runs here but would not compile for the device, or might fail there."""


def findings(module: ir.Module, policy: Policy, cores: Cores | None = None) -> list[Finding]:
    """Every rule that holds for the policy and matches, in program order; once for each line.

    ``module`` is the per-core program, in its MLIR context; ``cores`` says where its replicas run.
    """
    first: dict[tuple[str, str], Finding] = {}
    for finding in _matches(Program(module, policy, cores)):
        first.setdefault((finding.rule.what, finding.where), finding)
    return list(first.values())


def _matches(program: Program) -> Iterator[Finding]:
    rules = [rule for rule in RULES if rule.holds_for(program.policy)]
    names = {name for rule in rules for name in rule.ops}
    by_op = {name: tuple(rule for rule in rules if name in rule.ops) for name in names}
    of_every_op = [rule for rule in rules if not rule.ops]

    @cache
    def by_elements(elements: frozenset[str]) -> tuple[Rule, ...]:
        return tuple(rule for rule in of_every_op if rule.elements & elements)

    graph = program.graph
    for op, function in graph.operations:
        if not op.name.startswith(_DIALECTS):
            continue
        elements = program.elements([*op.operands, *op.results])
        candidates = by_op.get(op.name, ()) + by_elements(elements)
        for rule in candidates:
            if rule.elements and not rule.elements & elements:
                continue
            for path in graph.paths(function):
                detail = rule.check(Site(program, op, path))
                if detail is not None:
                    yield Finding(rule, op.name, graph.source(op, path), detail)


def _log(found: list[Finding], policy: Policy) -> None:
    for finding in found:
        logger.log(_LEVELS[finding.rule.severity], "%s", finding, extra={"finding": finding})


def _warn(found: list[Finding], policy: Policy) -> None:
    """One warning per rule, for its first match; the user's line is where Python says it comes
    from. Notes are logged alone."""
    _log([finding for finding in found if finding.rule.severity is Severity.NOTE], policy)
    first: dict[str, Finding] = {}
    for finding in found:
        if finding.rule.severity >= Severity.WARNING:
            first.setdefault(finding.rule.what, finding)
    for finding in first.values():
        _warn_once(finding)


def _warn_once(finding: Finding) -> None:
    text = str(finding)
    if finding.source is None:
        warnings.warn(text, LegalityWarning, stacklevel=2)
        return
    said = _said_in(finding.source.file)
    if text not in said:
        said.add(text)
        warnings.warn_explicit(text, LegalityWarning, finding.source.file, finding.source.line)


def _said_in(file: str) -> set[str]:
    """The warnings that a file has been given, kept in its module as Python keeps its own.

    Python's own register is cleared whenever anybody changes a filter, as JAX often does; and
    JAX compiles in a thread whose stack does not lead to the user.
    """
    modules = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == file]
    module = modules[0] if modules else sys.modules["__main__"]
    return vars(module).setdefault("__neuronjax_warnings__", set())


def _refuse(found: list[Finding], policy: Policy) -> None:
    errors = [finding for finding in found if finding.rule.severity is Severity.ERROR]
    if errors:
        lines = "\n".join(f"  {finding}" for finding in errors)
        sdk = ".".join(map(str, policy.sdk))
        raise LegalityError(
            f"the program would not compile for {policy.chip} with Neuron SDK {sdk}:\n{lines}"
        )
    _warn(found, policy)


MODES: dict[str, Callable[[list[Finding], Policy], None]] = {
    "log": _log,
    "warn": _warn,
    "strict": _refuse,
}
"""What is done with findings; a mode without a row looks for none."""


def check(module: ir.Module, policy: Policy, cores: Cores | None = None) -> None:
    """Applies the policy on legality: ``off``, ``log``, ``warn`` or ``strict``.

    Raises:
      LegalityError: mode ``strict``, with all findings that are errors.
    """
    if policy.legality not in MODES:
        return
    found = findings(module, policy, cores)
    attribute = module.operation.attributes.get("sym_name")
    name = "without a name" if attribute is None else ir.StringAttr(attribute).value
    logger.debug("program %s: %d findings", name, len(found), extra={"program": name})
    MODES[policy.legality](found, policy)
