"""Runs the StableHLO conformance programs through the JAX client of a platform.

  python -m tests.conformance.stablehlo --platform=neuron
  python -m tests.conformance.stablehlo --platform=cpu --match='sort*' --out=results.jsonl

Prints passes and failures by operation, and how each failed program failed. `neuron` runs with
NEURONJAX_NUMERICS=ieee unless the environment says otherwise. With --out, one JSON object per
program is written as it is done: {"name", "family", "error"}, an empty error meaning it passed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

import jax
import numpy as np
from absl import app, flags
from jax._src.lib import xla_client

from tests.conformance import stablehlo_compare, stablehlo_data

_PLATFORM = flags.DEFINE_string("platform", "neuron", "JAX platform that runs the programs.")
_MATCH = flags.DEFINE_string("match", "*", "Glob of program names.")
_PART = flags.DEFINE_string("part", "0/1", "Part 0, 1, ... of so many, as 0/8.")
_OPAQUE = flags.DEFINE_bool(
    "opaque_inputs", False, "Keep compilers from folding the programs into constants."
)
_OUT = flags.DEFINE_string("out", None, "JSON-lines file for the results.")

_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Result:
    """What became of one program; `error` is empty if it passed."""

    name: str
    family: str
    error: str


def execute(device: jax.Device, runnable: stablehlo_data.Runnable) -> list[np.ndarray]:
    """Compiles for `device`, runs, and returns the results as numpy arrays."""
    executable = device.client.compile_and_load(
        runnable.module,
        executable_devices=xla_client.DeviceList((device,)),
        compile_options=xla_client.CompileOptions(),
    )
    shards = executable.execute_sharded([]).disassemble_into_single_device_arrays()
    return [np.asarray(arrays[0]) for arrays in shards]


def run_program(device: jax.Device, program: stablehlo_data.Program, opaque: bool) -> Result:
    """Runs one program; whatever it raises becomes the error of its result."""
    try:
        runnable = stablehlo_data.make_runnable(program, opaque)
        values = execute(device, runnable)
        pairs = zip(runnable.checks, values[::2], values[1::2], strict=True)
        error = "; ".join(filter(None, (stablehlo_compare.difference(*pair) for pair in pairs)))
    except Exception as problem:  # a backend may raise anything, and the next program must run
        error = " ".join(f"{type(problem).__name__}: {problem}".split())
    return Result(program.name, program.family, error[:_ERROR_CHARACTERS])


def run_all(platform: str, pattern: str, opaque: bool, part: tuple[int, int]) -> Iterator[Result]:
    """Results of the programs of a part (0, 1, ... of so many) whose names match, one by one.

    64-bit types are switched on for the whole process.
    """
    at, parts = part
    jax.config.update("jax_enable_x64", True)
    device = jax.devices(platform)[0]
    programs = stablehlo_data.read_programs(stablehlo_data.archive_path())
    for number, program in enumerate(programs):
        if number % parts == at and fnmatch(program.name, pattern):
            yield run_program(device, program, opaque)


def table(results: Sequence[Result]) -> str:
    """Passes and failures by operation, then the failures."""
    passed = Counter(result.family for result in results if not result.error)
    failed = Counter(result.family for result in results if result.error)
    rows = [f"{'operation':32s}{'passed':>8s}{'failed':>8s}"]
    rows += [f"{name:32s}{passed[name]:8d}{failed[name]:8d}" for name in sorted({*passed, *failed})]
    rows.append(f"{'all':32s}{passed.total():8d}{failed.total():8d}")
    rows += [f"{result.name}: {result.error}" for result in results if result.error]
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> None:
    if arguments[1:]:
        raise app.UsageError(f"unexpected arguments {arguments[1:]}")
    if _PLATFORM.value != "cpu":
        os.environ.setdefault("JAX_PLATFORMS", f"{_PLATFORM.value},cpu")
        jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
        os.environ.setdefault("NEURONJAX_NUMERICS", "ieee")
        os.environ.setdefault("NEURONJAX_LEGALITY", "off")
    started = time.monotonic()
    results = []
    with Path(_OUT.value or os.devnull).open("w", buffering=1) as out:
        at, parts = map(int, _PART.value.split("/"))
        for result in run_all(_PLATFORM.value, _MATCH.value, _OPAQUE.value, (at, parts)):
            results.append(result)
            out.write(json.dumps(asdict(result)) + "\n")
    print(table(results))
    print(f"{time.monotonic() - started:.1f} s on {_PLATFORM.value}")
    sys.exit(any(result.error for result in results))


if __name__ == "__main__":
    app.run(main)
