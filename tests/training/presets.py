"""Every preset in small, as a user runs it: trains, resumes, and goes on elsewhere.

`python -m tests.training.presets` runs all of them (half an hour); --presets=NAME,… some.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import app, flags
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from launch.presets.recipe import TINY_CORES
from launch.presets.table import RECIPES
from tests.launch.programs import ROOT, losses

STEPS, HALF = 4, 2
DEADLINE = 3600.0  # seconds
ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "tiny": ("--mesh=data=2,fsdp=2,model=2", "--nozero_1", "--scan_layers"),
    "tiny32": ("--mesh=data=4,fsdp=4,model=2", "--nozero_1", "--scan_layers"),
}
"""Another mesh and another parallelism than any twin has."""

RTOL = 2e-3
"""Of losses elsewhere: BF16 rounds sums that other cores share in other ways."""

QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
"""Flags of XLA with which small programs compile in a third of the time."""

TALKS = [
    {"prompt": f"What is {a} and {b}? ", "completion": f"{a + b}, of course."}
    for a in range(10)
    for b in range(10)
]
PAIRS = [
    {"prompt": talk["prompt"], "chosen": talk["completion"], "rejected": "No idea."}
    for talk in TALKS
]
RECORDS = {"sft": TALKS, "dpo": PAIRS, "orpo": PAIRS}


@dataclass(frozen=True)
class Outcome:
    """What became of a preset. `failure` is empty if all went well."""

    name: str
    losses: tuple[float, ...]
    deviation: float  # relative, of losses elsewhere
    seconds: float
    failure: str = ""


def command(name: str, scale: str, directory: Path, *more: str) -> list[str]:
    """The command line of a twin that saves in the middle; more flags come last."""
    task = RECIPES[name].task
    program = "train" if task is None else "finetune"
    settings = [f"--preset={name}", f"--scale={scale}", f"--steps={STEPS}"]
    # What the device would take is not asked here, and lowering takes longer than compiling.
    settings += ["--nodevice_time", "--nocheck_memory"]
    settings += [f"--checkpoint_every={HALF}", f"--checkpoint_dir={directory}"]
    if task is not None:
        data = directory.parent / f"{task}.jsonl"
        data.write_text("".join(json.dumps(record) + "\n" for record in RECORDS[task]))
        settings += [f"--data={data}"]
    return [sys.executable, "-m", f"launch.{program}", *settings, *more]


def run(arguments: list[str], environment: Mapping[str, str]) -> str:
    """What the program says. Raises RuntimeError if it fails."""
    process = subprocess.run(
        arguments,
        cwd=ROOT,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments[2:])}: {process.stderr[-2000:]}")
    return process.stderr


def check(name: str, scale: str, folder: Path, environment: Mapping[str, str]) -> Outcome:
    """Trains, resumes from the middle, and goes on from there elsewhere."""
    began = time.monotonic()
    environment = {
        **environment,
        "XLA_FLAGS": f"{environment.get('XLA_FLAGS', '')} {QUICK}",
    }
    whole, resumed, moved = (folder / each for each in ("whole", "resumed", "moved"))
    try:
        run(command(name, scale, whole), environment)
        expected = _losses(whole)
        for directory, flags_there in ((resumed, ()), (moved, ELSEWHERE[scale])):
            shutil.copytree(whole / str(HALF), directory / str(HALF))
            said = run(command(name, scale, directory, *flags_there), environment)
            assert f"resuming after step {HALF}" in said, said
        deviation = max(_deviations(expected, _losses(moved)))
        again = _losses(resumed)
        assert again == expected[HALF:], f"resumed, the losses are {again}, not {expected[HALF:]}"
        assert deviation < RTOL, f"elsewhere, the losses are {_losses(moved)}, not {expected}"
    except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as error:
        return Outcome(name, (), math.nan, time.monotonic() - began, str(error))
    return Outcome(name, tuple(expected), deviation, time.monotonic() - began)


def _losses(directory: Path) -> list[float]:
    return [loss for _, loss in losses(directory)]


def _deviations(expected: list[float], got: list[float]) -> Iterator[float]:
    assert len(got) == STEPS - HALF, got
    for one, other in zip(expected[HALF:], got, strict=True):
        yield abs(one - other) / abs(one)


def table(outcomes: list[Outcome]) -> Table:
    """The outcomes, a row each."""
    drawn = Table("preset", "losses", "elsewhere, rel.", "time", "")
    for each in outcomes:
        drawn.add_row(
            each.name,
            " ".join(f"{loss:.4f}" for loss in each.losses),
            f"{each.deviation:.1e}",
            f"{each.seconds:.0f} s",
            "failed" if each.failure else "",
        )
    return drawn


_PRESETS = flags.DEFINE_list("presets", list(RECIPES), "Names of presets.")
_SCALE = flags.DEFINE_enum("scale", "tiny", list(TINY_CORES), "Of the twins.")


def main(arguments: list[Any]) -> None:
    outcomes = []
    bar = tqdm(_PRESETS.value, unit="preset")
    for name in bar:
        bar.set_postfix_str(name)
        with tempfile.TemporaryDirectory() as folder:
            environment = {"JAX_PLATFORMS": "neuron"}
            outcomes.append(check(name, _SCALE.value, Path(folder), environment))
        last = outcomes[-1]
        bar.write(f"{name}: {last.failure or 'passed'} ({last.seconds:.0f} s)")
    Console(width=120).print(table(outcomes))
    if any(each.failure for each in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
