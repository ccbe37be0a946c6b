"""What ``neuronjax lint`` prints."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neuronjax.cli.scripts import NO_PROGRAM, Outcome
from neuronjax.errors import shown_line
from neuronjax.legalize.report import Finding
from neuronjax.legalize.rules.rule import Rule, Severity

_WIDTH = 100
_ZEROS = (
    "Nothing is executed under lint: every result is zero. If the error comes from such a value, "
    "make that part of the script depend on the configuration instead, or really run the script "
    "with JAX_PLATFORMS=neuron NEURONJAX_LEGALITY=warn."
)


@dataclass(frozen=True)
class Report:
    """The outcome of a run of the linter."""

    target: str
    sdk: str
    programs: int
    """How many programs were compiled for the platform."""
    findings: Sequence[Finding]
    outcome: Outcome


def text(report: Report) -> str:
    """The report for people: a table of findings, then what every rule means and what to do."""
    parts = [_heading(report)]
    rows = [_row(finding) for finding in report.findings]
    if rows:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
        parts.append("\n".join(line.rstrip() for line in lines))
        rules = dict.fromkeys(finding.rule for finding in report.findings)
        parts.append("\n".join(_explanation(rule) for rule in rules))
    parts.append(_ending(report))
    return "\n\n".join(parts) + "\n"


def _row(finding: Finding) -> tuple[str, str, str, str]:
    rule = finding.rule
    what = f"{rule.what}: {finding.detail}" if finding.detail else rule.what
    return rule.severity.label, rule.label, shown_line(finding.where), what


def _heading(report: Report) -> str:
    programs = "1 program" if report.programs == 1 else f"{report.programs} programs"
    return f"{report.outcome.script}: {programs} for {report.target}, Neuron SDK {report.sdk}"


def _explanation(rule: Rule) -> str:
    body = f"[{rule.label}] {rule.what}: {rule.message}. {rule.remedy}"
    return "\n".join(textwrap.wrap(body, _WIDTH, subsequent_indent="    "))


def _ending(report: Report) -> str:
    counts = Counter(finding.rule.severity for finding in report.findings)
    total = ", ".join(
        f"{counts[severity]} {severity.label}{'s' if counts[severity] > 1 else ''}"
        for severity in reversed(Severity)
        if counts[severity]
    )
    lines = [total] if total else []
    if report.outcome.error is not None:
        lines.append(f"The script failed: {report.outcome.error}.")
        lines += textwrap.wrap(_ZEROS, _WIDTH)
    elif report.programs == 0:
        lines.append(NO_PROGRAM)
    return "\n".join(lines or ["nothing found"])


def as_json(report: Report) -> str:
    """The report for programs: a JSON object."""
    return (
        json.dumps(
            {
                "target": report.target,
                "sdk": report.sdk,
                "programs": report.programs,
                "script": {"path": report.outcome.script, "error": report.outcome.error},
                "findings": [_record(finding) for finding in report.findings],
            },
            indent=2,
        )
        + "\n"
    )


def _record(finding: Finding) -> dict[str, object]:
    return {
        "code": finding.rule.label,
        "severity": finding.rule.severity.label,
        "file": finding.source.file if finding.source else None,
        "line": finding.source.line if finding.source else None,
        "what": finding.rule.what,
        "op": finding.op,
        "message": finding.rule.message,
        "detail": finding.detail,
        "remedy": finding.rule.remedy,
        "document": finding.rule.source,
    }


FORMATS: dict[str, Callable[[Report], str]] = {"text": text, "json": as_json}
