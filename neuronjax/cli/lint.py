"""``neuronjax lint``: runs a script without executing its programs, and reports what it finds."""

from __future__ import annotations

import argparse
import logging

import jax

from neuronjax import options
from neuronjax.cli import lint_report, scripts
from neuronjax.cli.arguments import seconds
from neuronjax.legalize.report import Finding, logger
from neuronjax.legalize.rules.rule import Severity
from neuronjax.machine.machine import Machine

CLEAN, FOUND, NOT_CHECKED = 0, 1, 2
"""Exit codes."""

_SEVERITIES = {severity.label: severity for severity in reversed(Severity)}
_DEFAULT_TIMEOUT_SECONDS = 600

DESCRIPTION = """\
Runs a script on an emulated machine and reports what the Neuron compiler would refuse in the
programs it jits, with the error code, the line and a remedy. Programs are traced, lowered and
partitioned, but not executed: their results are zeros of the right type. Therefore

  * Python code that looks at results sees zeros: branches and loops that depend on them may behave
    differently from a real run. A loop that waits for a value may never end; see --timeout.
  * everything else in the script really happens: files are written (with zeros in them, so give it
    a scratch directory), data is read, processes are started.

The standard output of the script goes to standard error.

Exit codes: 0 nothing that does not compile, 1 errors, or findings of a --severity that was given, 2
the script raised an exception, was stopped, compiled no program, or could not be run (what was
found until then is reported).
"""


class Collector(logging.Handler):
    """Collects the findings and the names of the programs that were checked."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.findings: dict[tuple[str, str], Finding] = {}
        self.programs: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        finding = getattr(record, "finding", None)
        if finding is not None:
            self.findings.setdefault((finding.rule.what, finding.where), finding)
        elif hasattr(record, "program"):
            self.programs.append(record.program)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", help="machine, such as trn1.32xlarge (default: as configured)")
    parser.add_argument("--sdk", help="version of the Neuron SDK, such as 2.31 (default: newest)")
    parser.add_argument(
        "--severity",
        choices=_SEVERITIES,
        help="the lowest severity to report, with exit code 1: errors do not compile, warnings "
        "fail at times, notes compute different numbers (default: warnings are reported, errors "
        "end with exit code 1)",
    )
    parser.add_argument("--format", choices=lint_report.FORMATS, default="text")
    parser.add_argument(
        "--timeout",
        type=seconds(0),
        default=_DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="stop the script after this time (default: %(default)s; 0: never)",
    )
    scripts.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Lints a script in this process, which should end soon after."""
    scripts.check(arguments.script, arguments.module)
    machine = _choose_machine(arguments)
    collector = Collector()
    logger.addHandler(collector)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    with scripts.stdout_on_stderr() as out:
        outcome = scripts.run(
            arguments.script, arguments.arguments, arguments.module, arguments.timeout
        )
        least = _SEVERITIES[arguments.severity or "warning"]
        findings = [f for f in collector.findings.values() if f.rule.severity >= least]
        report = lint_report.Report(
            target=str(machine),
            sdk=options.load().sdk,
            programs=len(collector.programs),
            findings=findings,
            outcome=outcome,
        )
        out.write(lint_report.FORMATS[arguments.format](report))
        out.flush()
    if outcome.error is not None or not collector.programs:
        return NOT_CHECKED
    failing = _SEVERITIES[arguments.severity or "error"]
    return FOUND if any(finding.rule.severity >= failing for finding in findings) else CLEAN


def _choose_machine(arguments: argparse.Namespace) -> Machine:
    """Sets the options of the run; raises ``ConfigurationError`` if they are impossible."""
    asked = {name: getattr(arguments, name) for name in ("target", "sdk")}
    given = {name: value for name, value in asked.items() if value is not None}
    chosen = options.load(**given)
    machine = Machine.create(chosen.target, chosen.lnc)
    options.pin(executor="none", legality="log", numerics="ieee", **given)
    jax.config.update("jax_platforms", "neuron,cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    return machine
