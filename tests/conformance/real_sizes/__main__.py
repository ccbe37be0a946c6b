"""Estimates random programs of real sizes, and shrinks those that something is wrong with.

  python -m tests.conformance.real_sizes --seeds=2000
  python -m tests.conformance.real_sizes --seeds=100 --kind=attention --first=5000
  python -m tests.conformance.real_sizes --show=17
  python -m tests.conformance.real_sizes --table

A line of JSON per seed goes to --out; seeds that it holds already are not estimated again. Findings
are printed with a script that shows them, and counted at the end by their manner. --table prints
the ratios to the roofline that --out holds, by kind and machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from absl import app, flags

from tests.conformance.random_programs.reports import report, results
from tests.conformance.real_sizes.checks import Estimated, Net, laws_of
from tests.conformance.real_sizes.program import KINDS, SizedProgram, sized_program
from tests.conformance.real_sizes.ratios import table

_SEEDS = flags.DEFINE_integer("seeds", 2000, "So many seeds.")
_FIRST = flags.DEFINE_integer("first", None, "The first seed; default: of the day.")
_KIND = flags.DEFINE_enum("kind", None, list(KINDS), "Programs of this kind alone.")
_PROCESSES = flags.DEFINE_integer("processes", 1, "Programs at a time.")
_OUT = flags.DEFINE_string("out", "runs/real_sizes.jsonl", "Results, one line per seed.")
_SHOW = flags.DEFINE_integer("show", None, "Print the program of this seed, and estimate nothing.")
_TABLE = flags.DEFINE_bool("table", False, "Print the ratios that --out holds.")


def entry_of(net: Net, seed: int, program: SizedProgram) -> dict[str, Any]:
    """What is known of a program; findings are printed."""
    began = time.monotonic()
    finding, outcome = net.check(program, laws_of(seed))
    entry: dict[str, Any] = {
        "seed": seed, "kinds": program.kind, "machine": program.machine, "mesh": program.mesh,
        "manner": "", "seconds": round(time.monotonic() - began, 2),
    }  # fmt: skip
    if isinstance(outcome, Estimated):
        entry |= {"ns": outcome.time_ns, "ratio": round(outcome.ratio, 2)}
        entry |= {"cpu_seconds": round(outcome.cpu_seconds, 2), "name": program.name}
    if finding is not None:
        error = finding.error.replace("\n", "\n# ")
        head = f"# seed {seed}, {finding.program.name}\n# {error}"
        print(f"\n{head}\n{finding.program.script}", flush=True)
        entry |= {"manner": finding.manner, "error": finding.error, "small": finding.program.name}
    return entry


def estimate_all(seeds: Sequence[int], out: TextIO) -> None:
    """Writes a line for each seed."""
    with Net() as net:
        for seed in seeds:
            program = sized_program(seed, _KIND.value)
            out.write(json.dumps(entry_of(net, seed, program)) + "\n")


def main(arguments: Sequence[str]) -> int:
    """1 if there are findings."""
    if arguments[1:]:
        raise app.UsageError(f"unexpected arguments {arguments[1:]}")
    if _SHOW.value is not None:
        print(sized_program(_SHOW.value, _KIND.value).script)
        return 0
    path = Path(_OUT.value)
    if _TABLE.value:
        print(table(results(path)))
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    # Seeds of a day are new, and the same all day.
    first = int(time.time()) // 86_400 * 10_000 if _FIRST.value is None else _FIRST.value
    wanted = range(first, first + _SEEDS.value)
    done = {entry["seed"] for entry in results(path)}
    todo = [seed for seed in wanted if seed not in done]
    parts = [todo[at :: _PROCESSES.value] for at in range(_PROCESSES.value)]
    with path.open("a", buffering=1) as out, ThreadPoolExecutor(_PROCESSES.value) as pool:
        list(pool.map(lambda seeds: estimate_all(seeds, out), parts))
    entries = [entry for entry in results(path) if entry["seed"] in wanted]
    print(report(entries))
    return int(any(entry["manner"] for entry in entries))


if __name__ == "__main__":
    app.run(main)
