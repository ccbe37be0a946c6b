"""Measurements that need a process of their own: starting, 512 cores, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from launch.benchmarks import loading
from launch.benchmarks.paired import Measurement, compare, summary, time_pairs
from launch.benchmarks.platforms import (
    DEVICES,
    ONE_CHIP,
    ULTRASERVER,
    ULTRASERVER_DEVICES,
    Settings,
)

PLUGIN_MODULE = "neuronjax.pjrt.plugin"
PACKAGE = "neuronjax"

_PROJECT = Path(__file__).resolve().parents[2]
_SECONDS = 600


def run_child(platform: str, task: Sequence[str], variables: Mapping[str, str]) -> dict[str, float]:
    """What `launch.benchmarks.child` prints for `task` with JAX's default platform `platform`.

    Raises:
      RuntimeError: the process failed; the message ends with the end of its error output.
    """
    search = [str(_PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        **variables,
        "JAX_PLATFORMS": platform,
        "PYTHONPATH": os.pathsep.join(search),
    }
    process = subprocess.run(
        [sys.executable, "-m", "launch.benchmarks.child", *task],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    if process.returncode:
        raise RuntimeError(
            f"benchmark process {' '.join(task)} on {platform} exited with code "
            f"{process.returncode}: {process.stderr[-800:]}"
        )
    numbers: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return numbers


def first_jit(settings: Settings, repetitions: int) -> Measurement:
    """Seconds that a whole process with one jitted call takes longer than on the baseline."""
    seconds = time_pairs(
        lambda: run_child(settings.platform, ["first_jit"], ONE_CHIP),
        lambda: run_child(settings.baseline, ["first_jit"], {}),
        repetitions,
        warmup=1,
    )
    return compare(*seconds, how="difference")


def bystander(settings: Settings, repetitions: int) -> Measurement:
    """CPU seconds that installed plugins cost a process on the baseline, which uses none."""

    def seconds(*flags: str) -> float:
        return run_child(settings.baseline, ["bystander", *flags], {})["seconds"]

    pairs = [(seconds(), seconds("--alone")) for _ in range(repetitions)]
    subject, baseline = zip(*pairs, strict=True)
    return compare(subject, baseline, how="difference")


def many_cores(settings: Settings, repetitions: int, number: str) -> Measurement:
    """One `number` of the child's `many_cores` on all devices of an UltraServer, in seconds."""
    variables = ULTRASERVER | {"JAX_NUM_CPU_DEVICES": str(ULTRASERVER_DEVICES)}
    runs = [run_child(settings.platform, ["many_cores"], variables) for _ in range(repetitions)]
    if runs[0]["devices"] != ULTRASERVER_DEVICES:
        raise RuntimeError(
            f"asked for {ULTRASERVER_DEVICES} devices on {settings.platform}, but found "
            f"{runs[0]['devices']:.0f}"
        )
    return summary([run[number] for run in runs], {"first_step_seconds": runs[0]["first_step"]})


def growth(settings: Settings, repetitions: int, calls: int) -> Measurement:
    """MB of resident memory that `calls` calls leave behind."""
    task = ["growth", f"--calls={calls}"]
    return summary(
        [run_child(settings.platform, task, ONE_CHIP)["megabytes"] for _ in range(repetitions)]
    )


def numerics(settings: Settings, repetitions: int, variables: Mapping[str, str]) -> Measurement:
    """Ratio of training steps in BF16 with the numerics of `variables` to those in IEEE's.

    A run of one and a run of the other are processes of their own, in turn.
    """

    def seconds(environment: Mapping[str, str]) -> float:
        return run_child(settings.platform, ["bf16_steps"], environment)["seconds"]

    pairs = [(seconds({**ONE_CHIP, **variables}), seconds(ONE_CHIP)) for _ in range(repetitions)]
    subject, baseline = zip(*pairs, strict=True)
    return compare(subject, baseline, how="ratio")


def calls_in_python(settings: Settings, repetitions: int, row: str) -> Measurement:
    """Ratio of a `row` of calls to the baseline, with every PJRT call answered in Python."""
    variables = {**ONE_CHIP, "NEURONJAX_NATIVE_STUBS": "0", "JAX_NUM_CPU_DEVICES": str(DEVICES)}
    platforms = f"{settings.platform},{settings.baseline}"
    run = run_child(platforms, ["calls", f"--row={row}", f"--calls={repetitions}"], variables)
    return summary([run["ratio"]])


def kernels(
    settings: Settings, repetitions: int, row: str, number: str, scale: float
) -> Measurement:
    """One `number` of a `row` of kernels, in units of 1 / `scale`."""
    task = ["kernels", f"--row={row}", f"--calls={repetitions}"]
    run = run_child(settings.platform, task, ONE_CHIP)
    value, low, high = (scale * run[f"{number}.{field}"] for field in ("value", "low", "high"))
    return Measurement(value, low, high, run)


def handles(settings: Settings, repetitions: int) -> Measurement:
    """Handles of the plugin that outlive what they stood for."""
    task = ["handles", f"--module={PLUGIN_MODULE}"]
    runs = [run_child(settings.platform, task, ONE_CHIP) for _ in range(repetitions)]
    return summary([run["left"] for run in runs], runs[0])


def loading_time(settings: Settings, repetitions: int) -> Measurement:
    """Ratio of loading a checkpoint to reading its files with safetensors, each once in a process:
    a second time, some of the memory would still be there from the first."""

    def seconds(side: str) -> float:
        task = ["loading_seconds", f"--row={side}", f"--directory={directory}"]
        return run_child(settings.platform, task, ONE_CHIP)["seconds"]

    with loading.random_checkpoint() as directory:
        seconds("read")  # the files are in memory from here on
        pairs = [(seconds("load"), seconds("read")) for _ in range(repetitions)]
    subject, baseline = zip(*pairs, strict=True)
    return compare(subject, baseline, how="ratio")


def loading_memory(settings: Settings, repetitions: int) -> Measurement:
    """Peak memory of loading a checkpoint in sizes of the model; the model itself counts as 1.

    Pages of files that are mapped count. The details tell it without them.
    """
    with loading.random_checkpoint() as directory:
        task = ["loading", f"--directory={directory}"]
        runs = [run_child(settings.platform, task, ONE_CHIP) for _ in range(repetitions)]
    details = {"anonymous": float(np.median([run["anonymous"] for run in runs]))}
    return summary([run["resident"] for run in runs], details)


def rounding(settings: Settings, repetitions: int, calls: int) -> Measurement:
    """ns per element of the slowest rounding from FP32, jitted on the baseline platform."""
    task = ["rounding", f"--module={PACKAGE}", f"--calls={calls}"]
    runs = [run_child(settings.baseline, task, {}) for _ in range(repetitions)]
    details = {name: float(np.median([run[name] for run in runs])) for name in runs[0]}
    return summary([max(run.values()) for run in runs], details)
