"""Runs programs that people bring on `cpu` and on `neuron`, and compares what they print.

  python -m tests.clients --python=PYTHON                     all of them
  python -m tests.clients --python=PYTHON --only=maxtext      MaxText's configurations
  python -m tests.clients --python=PYTHON --only=ahead        published models ahead of time
  python -m tests.clients --python=PYTHON --only=numpyro,brax

PYTHON is an interpreter that has neuronjax and the clients: docs/maxtext.md says what MaxText
needs, and the first line of a script in tests/clients/scripts names its package. The numbers of
both platforms must agree to three digits. Results, with versions and the commit, go to
tests/clients/results.json, a row each; the exit code is 1 if one failed.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from absl import app, flags

from tests.clients import maxtext

_PYTHON = flags.DEFINE_string("python", None, "Interpreter that has the clients.", required=True)
_ONLY = flags.DEFINE_list("only", [], "Clients to run (default: all).")
_ROWS = flags.DEFINE_string("rows", "", "Regular expression that the rows to run match.")

RESULTS = Path(__file__).with_name("results.json")
SCRIPTS = Path(__file__).with_name("scripts")
PLATFORMS = ("cpu", "neuron")
DEVICES = 4
THREE_DIGITS = 5e-4
"""Relative difference of two numbers that agree to three digits."""

_MAXTEXT_ON_CPU = (
    "attention=dot_product",
    "megablox=False",
    "hardware=tpu",
    "skip_jax_distributed_system=True",
    "enable_goodput_recording=False",
    "monitor_goodput=False",
)
"""What ``neuronjax maxtext train`` adds, for MaxText alone."""
_LOSS = re.compile(r"completed step: \d+, seconds: ([\d.]+),.* loss: ([\d.]+),")


@dataclass
class Outcome:
    """What a program printed on one platform."""

    values: list[float] = field(default_factory=list)
    seconds: float = 0.0
    """The whole process."""
    step_seconds: float | None = None
    """The median step but the first two, where the program says."""
    error: str = ""


@dataclass
class Row:
    """A program, and what it printed on both platforms."""

    client: str
    name: str
    version: str
    commit: str
    outcomes: dict[str, Outcome]

    @property
    def agrees(self) -> bool:
        """Whether both ran, and their numbers agree to three digits."""
        first, second = (self.outcomes[platform] for platform in PLATFORMS)
        if first.error or second.error or len(first.values) != len(second.values):
            return False
        return bool(first.values) and all(
            math.isclose(a, b, rel_tol=THREE_DIGITS, abs_tol=1e-6)
            for a, b in zip(first.values, second.values, strict=True)
        )


def _environment(platform: str) -> dict[str, str]:
    given = {"JAX_PLATFORMS": platform, "DECOUPLE_GCLOUD": "TRUE", "KERAS_BACKEND": "jax"}
    if platform == "cpu":
        given["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    return {**os.environ, **given}


def _run(words: Sequence[str], platform: str) -> tuple[str, float, str]:
    """Standard output and error of a program, its seconds, and the last line of a failure."""
    begin = time.monotonic()
    done = subprocess.run(
        [_PYTHON.value, *words],
        env=_environment(platform),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()] or [""]
    return done.stdout, time.monotonic() - begin, lines[-1] if done.returncode else ""


def _train(settings: str, platform: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        words = [
            *maxtext.COMMON.split(),
            *settings.split(),
            "run_name=run",
            f"base_output_directory={folder}",
        ]
        if platform == "cpu":
            base = "import maxtext; print(maxtext.__path__[0] + '/configs/base.yml')"
            file = _run(["-c", base], "cpu")[0].splitlines()[-1]
            command = ["-m", "maxtext.trainers.pre_train.train", file, *_MAXTEXT_ON_CPU]
        else:
            command = ["-m", "neuronjax", "maxtext", "train"]
        text, seconds, error = _run([*command, *words], platform)
    steps = [(float(took), float(loss)) for took, loss in _LOSS.findall(text)]
    later = [took for took, _ in steps[2:]]
    step = statistics.median(later) if later else None
    return Outcome([loss for _, loss in steps], seconds, step, error)


def _script(path: Path, platform: str) -> Outcome:
    text, seconds, error = _run([str(path)], platform)
    try:
        values = json.loads(text.splitlines()[-1]) if not error else []
    except (ValueError, IndexError):
        return Outcome([], seconds, None, "its last line is no list of numbers")
    return Outcome(values, seconds, None, error)


def _compile_ahead(arguments: str) -> Outcome:
    """Seconds of a step, and the MFU; the time is that of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*arguments.split(), "run_name=run", f"base_output_directory={folder}"]
        command = ["-m", "neuronjax", "maxtext", "compile", "--format=json"]
        text, seconds, error = _run([*command, *words, "log_config=False"], "cpu")
    start = text.find("\n{\n")
    if start < 0:
        return Outcome([], seconds, None, error or "it printed no estimate")
    estimate = json.JSONDecoder().raw_decode(text[start + 1 :])[0]
    return Outcome([estimate["step_ns"] * 1e-9, estimate["mfu_estimated_percent"]], seconds)


def _version(package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}), 'jax', m.version('jax'))"
    return _run(["-c", code], "cpu")[0].strip()


def _commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _rows() -> Iterator[Row]:
    chosen, commit = set(_ONLY.value), _commit()
    matches = re.compile(_ROWS.value).search
    scripts = {path.stem: path for path in sorted(SCRIPTS.glob("*.py"))}
    if not chosen or "maxtext" in chosen:
        version = _version("maxtext")
        for name, settings in maxtext.CONFIGURATIONS.items():
            if matches(name):
                both = {platform: _train(settings, platform) for platform in PLATFORMS}
                yield Row("maxtext", name, version, commit, both)
    if not chosen or "ahead" in chosen:
        version = _version("maxtext")
        for name, arguments in maxtext.AHEAD.items():
            if matches(name):
                outcome = _compile_ahead(arguments)
                yield Row("ahead", name, version, commit, dict.fromkeys(PLATFORMS, outcome))
    for client, path in scripts.items():
        if (not chosen or client in chosen) and matches(client):
            package = path.read_text().splitlines()[0].removeprefix("# package: ")
            both = {platform: _script(path, platform) for platform in PLATFORMS}
            yield Row(client, "", _version(package), commit, both)


def main(arguments: Sequence[str]) -> None:
    """Runs what is asked for, and keeps the results as they come."""
    del arguments
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = 0
    for row in _rows():
        key = f"{row.client}: {row.name}".removesuffix(": ")
        known[key] = {**asdict(row), "agrees": row.agrees}
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        cpu, ours = (row.outcomes[platform] for platform in PLATFORMS)
        failed += not row.agrees
        word = "agrees" if row.agrees else f"DIFFERS: {ours.error or cpu.error or 'values'}"
        print(f"{key:40} {cpu.seconds:6.1f} {ours.seconds:6.1f} s  {word}", flush=True)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    app.run(main)
