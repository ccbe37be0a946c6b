"""Applies the rules to a program and reports the findings.

Findings are advice: except in mode ``strict``, which refuses programs that break a rule, they never
end a compilation. If a rule itself raises, that is logged as a defect of ours and says nothing
about the program.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from neuronjax.errors import LegalityError, LegalityWarning, shown_line
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
_SILENCE = "neuronjax lint lists every line; NEURONJAX_LEGALITY=log or off ends these warnings."
_MOST_LINES = 8
"""Lines that a warning names for a rule."""
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
        return _told([self])


def _told(group: Sequence[Finding]) -> str:
    """All that is to be said of the findings of one rule: the first, and the other lines."""
    first, *others = group
    op = f"{first.op} at {_lines([first, *others])}"
    return f"[{first.rule.label}] {first.problem} ({first.rule.what}; {op}). {first.rule.remedy}"


def _told_again(group: Sequence[Finding]) -> str:
    """What is said of the findings of a rule whose message and remedy were told before."""
    rule = group[0].rule
    return f"[{rule.label}] again ({rule.what}; at {_lines(group)})."


def _lines(group: Sequence[Finding]) -> str:
    """The lines of findings, a file once; the count of those that are too many to name."""
    named: list[str] = []
    last = ""
    for finding in group[:_MOST_LINES]:
        file, _, line = finding.where.rpartition(":")
        named.append(line if file and file == last else shown_line(finding.where))
        last = file
    rest = len(group) - _MOST_LINES
    return ", ".join(named) + (f" and {rest} more lines" if rest > 0 else "")


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
        self._said: set[tuple[Rule, str]] = set()
        """Rules at lines."""
        self._told: set[Rule] = set()
        """Rules whose message and remedy the user has seen."""
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
        """Warns once for the program, at the user's line of what is gravest; notes are only logged.

        A rule at a line is named once for all programs, whatever Python's registry of warnings
        says, which is cleared whenever a filter changes, as JAX does often.
        """
        by_rule: dict[Rule, list[Finding]] = {}
        for finding in matches:
            if finding.rule.severity is Severity.NOTE:
                _log(finding)
            elif (finding.rule, finding.where) not in self._said:
                by_rule.setdefault(finding.rule, []).append(finding)
        if not by_rule:
            return
        told = [_told_again(group) if rule in self._told else _told(group)
                for rule, group in by_rule.items()]  # fmt: skip
        if not self._told.issuperset(by_rule):
            told.append(_SILENCE)
        self._told.update(by_rule)
        self._said.update((finding.rule, finding.where) for finding in matches)
        gravest, *_ = max(by_rule.values(), key=lambda group: group[0].rule.severity)
        source = gravest.source or Frame("", UNKNOWN, 1)
        if not warned(_block(told, len(by_rule)), LegalityWarning, source.file, source.line):
            for group in by_rule.values():
                _log(group[0], most=logging.WARNING)

    def _refuse(self, matches: list[Finding], policy: Policy) -> None:
        errors = [finding for finding in matches if finding.rule.severity is Severity.ERROR]
        if errors:
            lines = "\n".join(f"  {finding}" for finding in errors)
            sdk = ".".join(map(str, policy.sdk))
            raise LegalityError(
                f"the program would not compile for {policy.chip} with Neuron SDK {sdk}:\n{lines}"
            )
        self._warn(matches, policy)


def _block(lines: Sequence[str], rules: int) -> str:
    """A warning about a program: a line, or a heading and a line for each rule."""
    if rules == 1:
        return " ".join(lines)
    heading = f"the Neuron compiler has {rules} objections to this program:"
    return "\n  ".join((heading, *lines))


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
