"""Runs StableHLO conformance programs on emulated engines the way users' programs come.

  python -m tests.conformance.engine_door --of_each=3 --out=results.jsonl

The client of platform `neuron` compiles and runs them in a process whose executor is `engine`. The
judge is what the StableHLO project expects. Prints passes and failures by operation.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import jax
from absl import app, flags

from tests.conformance import engine, stablehlo
from tests.conformance.stablehlo_data import Program

ENVIRONMENT = {
    "JAX_PLATFORMS": "neuron,cpu",
    "NEURONJAX_EXECUTOR": "engine",
    "NEURONJAX_NUMERICS": "ieee",
    "NEURONJAX_LEGALITY": "off",
}
"""The judge knows no deviations of the chip."""


def sample(of_each: int) -> Iterator[Program]:
    """At most so many programs of each operation, of types that engines have."""
    taken: Counter[str] = Counter()
    for program in engine.programs("*", ""):
        if taken[program.family] < of_each:
            taken[program.family] += 1
            yield program


def main(arguments: Sequence[str]) -> None:
    if arguments[1:]:
        raise app.UsageError(f"unexpected arguments {arguments[1:]}")
    os.environ.update(ENVIRONMENT)
    jax.config.update("jax_platforms", ENVIRONMENT["JAX_PLATFORMS"])
    jax.config.update("jax_enable_x64", True)
    device = jax.devices("neuron")[0]
    results = []
    with Path(flags.FLAGS.out or os.devnull).open("w", buffering=1) as out:
        for program in sample(flags.FLAGS.of_each):
            results.append(stablehlo.run_program(device, program, opaque=True))
            out.write(json.dumps(asdict(results[-1])) + "\n")
    print(stablehlo.table(results))
    sys.exit(any(result.error for result in results))


if __name__ == "__main__":
    flags.DEFINE_integer("of_each", 3, "Programs of each operation.")
    app.run(main)
