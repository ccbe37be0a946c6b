"""Applies the rules to a program and reports the findings.

Findings are advice: except in mode ``strict``, which refuses programs that break a rule, they never
end a compilation. If a rule itself raises, that is logged as a defect of ours and says nothing
about the program.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from neuronjax.errors import LegalityError, LegalityWarning
from neuronjax.hlo.location import UNKNOWN, Frame
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.rules import RULES
from neuronjax.legalize.rules.rule import Cores, Program, Rule, Severity, Site
from neuronjax.notices import warned

logger = logging.getLogger("neuronjax.legality")
"""Findings are logged here, with the ``Finding`` as the record's attribute ``finding``; so are, at
level debug, the programs that were checked, with their names as attribute ``program``."""

_LEVELS = {
    Severity.ERROR: logging.ERROR,
    Severity.WARNING: logging.WARNING,
    Severity.NOTE: logging.INFO,
}
_SILENCE = "NEURONJAX_LEGALITY=log or off ends these warnings."
_DIALECTS = ("stablehlo.", "mhlo.", "chlo.")


@dataclass(frozen=True)
class Finding:
    """An op, at a line of the user's, that matches a rule."""

    rule: Rule
    op: str
    source: Frame | None
    """The user's line; ``None`` if it is not recorded."""
    detail: str
    """Details of this finding; may be empty."""

    @property
    def where(self) -> str:
        """``file:line``."""
        return str(self.source or UNKNOWN)

    @property
    def problem(self) -> str:
        """The compiler's message, with the details."""
        return f"{self.rule.message}: {self.detail}" if self.detail else self.rule.message

    def __str__(self) -> str:
        return (
            f"[{self.rule.label}] {self.problem} ({self.rule.what}; {self.op} at {self.where}). "
            f"{self.rule.remedy}"
        )


Defects = set[str]
"""``Rule.what`` of rules that failed and were logged."""


def findings(
    module: ir.Module,
    policy: Policy,
    cores: Cores | None = None,
    defects: Defects | None = None,
) -> list[Finding]:
    """The findings of all rules that hold for the policy, in program order, once per line.

    ``module`` is the per-core program, in its MLIR context; ``cores`` are those of its replicas. A
    rule that raises is logged unless it is in ``defects``, and added to them.
    """
    first: dict[tuple[str, str], Finding] = {}
    for finding in _matches(Program(module, policy, cores), set() if defects is None else defects):
        first.setdefault((finding.rule.what, finding.where), finding)
    return list(first.values())


def _matches(program: Program, defects: Defects) -> Iterator[Finding]:
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
                detail = _checked(rule, Site(program, op, path), defects)
                if detail is not None:
                    yield Finding(rule, op.name, graph.source(op, path), detail)


def _checked(rule: Rule, site: Site, defects: Defects) -> str | None:
    try:
        return rule.check(site)
    except Exception:
        _log_defect(f"the rule {rule.label} ({rule.what})", str(site.op.name), defects)
        return None


def _log_defect(what: str, where: str, defects: Defects) -> None:
    """Logs the exception that is being handled, once per ``what``."""
    if what not in defects:
        defects.add(what)
        logger.exception(
            "A defect of neuronjax: %s failed at %s. The program is compiled all the same, but "
            "nothing is said about it; please report this with the traceback.",
            what,
            where,
        )


class Reporter:
    """Reports findings in programs, and every warning and defect only once."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._defects: Defects = set()

    def check(self, module: ir.Module, policy: Policy, cores: Cores | None = None) -> None:
        """Applies the policy on legality: ``off``, ``log``, ``warn`` or ``strict``.

        Raises:
          LegalityError: mode ``strict``, with all findings that are errors.
        """
        mode = MODES.get(policy.legality)
        if mode is not None:
            mode(self, self._matches(module, policy, cores), policy)

    def _matches(self, module: ir.Module, policy: Policy, cores: Cores | None) -> list[Finding]:
        """What breaks a rule; a rule that raises is logged as a defect."""
        name = "without a name"
        matches: list[Finding] = []
        try:
            attribute = module.operation.attributes.get("sym_name")
            name = name if attribute is None else ir.StringAttr(attribute).value
            matches = findings(module, policy, cores, self._defects)
        except Exception:
            _log_defect("the check of legality", f"program {name}", self._defects)
        logger.debug("program %s: %d findings", name, len(matches), extra={"program": name})
        return matches

    def _log(self, matches: list[Finding], policy: Policy) -> None:
        for finding in matches:
            _log(finding)

    def _warn(self, matches: list[Finding], policy: Policy) -> None:
        """Warns once per rule, about its first match, at the user's line; notes are only logged."""
        first: dict[str, Finding] = {}
        for finding in matches:
            if finding.rule.severity is Severity.NOTE:
                _log(finding)
            else:
                first.setdefault(finding.rule.what, finding)
        for finding in first.values():
            self._warn_once(finding)

    def _warn_once(self, finding: Finding) -> None:
        """Warns once, even though Python's registry of warnings is cleared whenever a filter
        changes, which JAX does often."""
        text = str(finding)
        if text in self._said:
            return
        self._said.add(text)
        file, line = (finding.source.file, finding.source.line) if finding.source else (UNKNOWN, 1)
        if not warned(f"{text} {_SILENCE}", LegalityWarning, file, line):
            _log(finding, most=logging.WARNING)

    def _refuse(self, matches: list[Finding], policy: Policy) -> None:
        errors = [finding for finding in matches if finding.rule.severity is Severity.ERROR]
        if errors:
            lines = "\n".join(f"  {finding}" for finding in errors)
            sdk = ".".join(map(str, policy.sdk))
            raise LegalityError(
                f"the program would not compile for {policy.chip} with Neuron SDK {sdk}:\n{lines}"
            )
        self._warn(matches, policy)


class Collector(Reporter):
    """Keeps findings instead of reporting them, whatever the policy on legality."""

    def __init__(self) -> None:
        super().__init__()
        self.findings: list[Finding] = []

    def check(self, module: ir.Module, policy: Policy, cores: Cores | None = None) -> None:
        self.findings += self._matches(module, policy, cores)


def _log(finding: Finding, most: int = logging.ERROR) -> None:
    level = min(_LEVELS[finding.rule.severity], most)
    logger.log(level, "%s", finding, extra={"finding": finding})


MODES: dict[str, Callable[[Reporter, list[Finding], Policy], None]] = {
    "log": Reporter._log,
    "warn": Reporter._warn,
    "strict": Reporter._refuse,
}
"""Mode -> what to do with findings; in a mode without a row, no rules are applied."""
