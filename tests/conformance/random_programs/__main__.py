"""Runs random programs on engines and on the host, and shrinks those whose values differ.

  python -m tests.conformance.random_programs --seeds=2000
  python -m tests.conformance.random_programs --seeds=500 --first=10000 --against=adversarial
  python -m tests.conformance.random_programs --seeds=100 --against=processes --with=mesh
  python -m tests.conformance.random_programs --seeds=500 --against=ieee --with=cpu
  python -m tests.conformance.random_programs --show=17

`mesh` splits arguments over the eight devices of a process, `processes` over those of two.

A line of JSON per seed goes to --out; seeds that it holds already are not run again. Findings are
printed with a script that shows them, and counted at the end by their sort.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from tests.conformance.random_programs.check import Pair
from tests.conformance.random_programs.generate import random_program
from tests.conformance.random_programs.reports import report, results
from tests.conformance.random_programs.workers import SETTINGS

_SEEDS = flags.DEFINE_integer("seeds", 2000, "So many seeds.")
_FIRST = flags.DEFINE_integer("first", 0, "The first seed.")
_STATEMENTS = flags.DEFINE_integer("statements", 12, "Statements of a program, about.")
_OUT = flags.DEFINE_string("out", "runs/random_programs.jsonl", "Results, one line per seed.")
_AGAINST = flags.DEFINE_enum("against", "engine", SETTINGS, "What is compared with the other.")
_WITH = flags.DEFINE_enum("with", "host", SETTINGS, "The other.")
_SHOW = flags.DEFINE_integer("show", None, "Print the program of this seed, and run nothing.")


def main(arguments: Sequence[str]) -> None:
    if arguments[1:]:
        raise app.UsageError(f"unexpected arguments {arguments[1:]}")
    if _SHOW.value is not None:
        print(random_program(_SHOW.value, _STATEMENTS.value).reproducer)
        return
    path = Path(_OUT.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = range(_FIRST.value, _FIRST.value + _SEEDS.value)
    done = {entry["seed"] for entry in results(path)}
    with (
        path.open("a", buffering=1) as out,
        Pair(_AGAINST.value, flags.FLAGS["with"].value) as pair,
    ):
        for seed in wanted:
            if seed in done:
                continue
            started = time.monotonic()
            finding = pair.check(random_program(seed, _STATEMENTS.value))
            entry = {"seed": seed, "manner": "", "seconds": round(time.monotonic() - started, 2)}
            if finding is not None:
                print(f"\n# seed {seed}: {finding.error.replace(chr(10), chr(10) + '# ')}")
                print(finding.program.reproducer, flush=True)
                entry |= {"manner": finding.manner, "kinds": finding.kinds, "error": finding.error}
            out.write(json.dumps(entry) + "\n")
    print(report([entry for entry in results(path) if entry["seed"] in wanted]))


if __name__ == "__main__":
    app.run(main)
