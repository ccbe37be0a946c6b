"""``neuronjax lower``: prints a script's programs at any stage of the compiler."""

from __future__ import annotations

import argparse
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jax

from neuronjax import options
from neuronjax.cli import scripts
from neuronjax.dump import SUFFIXES, dumped
from neuronjax.lower import passes
from neuronjax.machine.machine import Machine

PRINTED, NOTHING, RAISED = 0, 1, 2
"""Exit codes."""

DESCRIPTION = """\
Runs a script on an emulated machine and prints the programs it jits, one after the other, as they
are after a stage of the compiler:

  partition   one core's share of the program: StableHLO with explicit collectives
  legalize    the same with the chip's numerics: every rounding, cast and accumulation type
  lower       engine instructions: tiles in SBUF and PSUM, DMA, semaphores, collectives

--stop_after takes passes within the last stage, too; --stop_after=help lists them.

Programs are not executed: their results are zeros of the right type, so Python code that looks at
results may behave differently from a real run. The script's standard output goes to standard error.

Example: neuronjax lower --program='jit_step' --stop_after=legalize train.py --steps=1

Exit codes: 0 programs were printed, 1 no program of that name was compiled, 2 the script raised an
exception (what was compiled until then is printed).
"""


class _Stage(argparse.Action):
    """A stage or a pass; `help` lists them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option: str | None = None,
    ) -> None:
        if value == "help":
            stages = ", ".join(SUFFIXES)
            sys.stdout.write(f"stages: {stages}; passes of the last one:\n{passes.DESCRIPTION}\n")
            parser.exit()
        known = (*SUFFIXES, *(pass_.name for pass_ in passes.PASSES))
        if value not in known:
            raise argparse.ArgumentError(self, f"{value!r} is not one of {', '.join(known)}")
        setattr(namespace, self.dest, value)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", help="machine, such as trn1.32xlarge (default: as configured)")
    parser.add_argument(
        "--stop_after", action=_Stage, default="lower", metavar="STAGE",
        help="the stage or pass (default: %(default)s); help lists all of them",
    )  # fmt: skip
    parser.add_argument(
        "--program",
        default="*",
        metavar="GLOB",
        help="only programs whose names match, such as jit_*",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="also write the texts of all stages to this folder"
    )
    scripts.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the programs of a script in this process, which should end soon after."""
    scripts.check(arguments.script, arguments.module)
    given = {} if arguments.target is None else {"target": arguments.target}
    chosen = options.load(**given)
    Machine.create(chosen.target, chosen.lnc)
    with tempfile.TemporaryDirectory() as spare, scripts.stdout_on_stderr() as out:
        folder = Path(arguments.out or spare)
        stage = tuple({arguments.stop_after} - SUFFIXES.keys())
        options.pin(executor="none", dump_to=str(folder), dump_passes=stage, **given)
        jax.config.update("jax_platforms", "neuron,cpu")
        jax.config.update("jax_enable_compilation_cache", False)
        outcome = scripts.run(arguments.script, arguments.arguments, arguments.module, 0)
        names: list[str] = []
        printed = 0
        for name, text in dumped(folder, arguments.stop_after):
            names.append(name)
            if fnmatch(name, arguments.program):
                out.write(f"// {name}, after {arguments.stop_after}\n{text}\n")
                printed += 1
        out.flush()
    if outcome.error is not None:
        return RAISED
    if not printed:
        print(f"neuronjax lower: {_nothing(arguments.program, names)}", file=sys.stderr)
    return PRINTED if printed else NOTHING


def _nothing(pattern: str, names: list[str]) -> str:
    """The reason why no program is printed."""
    if not names:
        return scripts.NO_PROGRAM
    distinct = ", ".join(dict.fromkeys(names))
    return f"no program matches --program={pattern}; the script compiled {distinct}."
