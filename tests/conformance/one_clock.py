"""Compares the timing model with discrete events on the StableHLO conformance programs.

  python -m tests.conformance.one_clock --summary=tests/conformance/one_clock.json
  python -m tests.conformance.one_clock --match='sort*'

Every kernel of every program, as a core runs it, is timed by `neuronjax.timing` and by
`tests/timing/discrete_event.py`. A program agrees if all of its kernels take the same picosecond.
Where transfers compete for the DMA engines, the two share the engines out differently; such a
program is counted apart if it agrees once transfers need none of them. Programs that a register
decides about, or of more than --most_runs instructions in one kernel, are left out and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from absl import app, flags

from neuronjax.program.walk import kernels
from neuronjax.timing.encoding import Assumptions, Compiled, compile_kernel
from neuronjax.timing.platform import Platform
from neuronjax.timing.simulate import simulate
from tests.conformance import stablehlo_data
from tests.conformance.engine import code_of, programs
from tests.lower import differential
from tests.timing.discrete_event import DiscreteEvents, instruction_runs, without_competition

FLAGS = flags.FLAGS
Verdict = Literal["exact", "exact without competition", "left out", "differs"]


def verdict_of(program: stablehlo_data.Program, most_runs: int) -> Verdict:
    """How the two clocks compare on all kernels of a program."""
    lowered = differential.completed(differential.lowered(code_of(program)))
    platform = Platform.of(lowered)
    compiled = [compile_kernel(kernel, platform, Assumptions()) for _, kernel in kernels(lowered)]
    if any(
        kernel.is_partial or instruction_runs(kernel.streams) > most_runs for kernel in compiled
    ):
        return "left out"
    if all(_agree(kernel, platform) for kernel in compiled):
        return "exact"
    free = [replace(kernel, streams=without_competition(kernel.streams)) for kernel in compiled]
    return "exact without competition" if all(_agree(k, platform) for k in free) else "differs"


def _agree(kernel: Compiled, platform: Platform) -> bool:
    return DiscreteEvents([(kernel, 0)], platform).duration() == simulate(kernel, platform).duration


def _verdicts() -> Iterator[Verdict]:
    for program in programs(FLAGS.match, ""):
        verdict = verdict_of(program, FLAGS.most_runs)
        if verdict == "differs":
            print(f"{program.name}: {verdict}", flush=True)
        yield verdict


def main(_: list[str]) -> None:
    counts = Counter(_verdicts())
    for verdict, count in counts.most_common():
        print(f"{count:5d}  {verdict}")
    if FLAGS.summary:
        document = {"commit": FLAGS.commit, "programs": dict(sorted(counts.items()))}
        Path(FLAGS.summary).write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    flags.DEFINE_string("match", "*", "Glob of program names.")
    flags.DEFINE_integer("most_runs", 3_000, "Instructions of a kernel that are compared at most.")
    flags.DEFINE_string("summary", None, "JSON file for the counts.")
    flags.DEFINE_string("commit", "", "The commit that is measured, for the summary.")
    app.run(main)
