"""A run that is interrupted in many ways has the losses of one that is not.

`python -m tests.training.interruptions --times=20` interrupts at random (10 minutes); make test
does it once in each way.
"""

import contextlib
import random
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from absl import app, flags

from launch import checkpoints
from tests.launch.programs import MODEL_FLAGS, losses, start

STEPS = 40
DEADLINE = 1800.0  # seconds

Process = subprocess.Popen[str]
Losses = list[tuple[int, float]]


def run(directory: Path, *flags: str) -> Process:
    """A run of STEPS that saves after each step."""
    settings = (f"--steps={STEPS}", "--checkpoint_every=1", "--keep=2", "--eval_every=1000")
    return start("train", *MODEL_FLAGS, *settings, f"--checkpoint_dir={directory}", *flags)


def finish(directory: Path) -> Losses:
    """The losses of all steps, once a run in the directory has ended by itself."""
    process = run(directory)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors
    return losses(directory)


def wait_for(process: Process, condition: Callable[[], bool]) -> None:
    """Returns when the condition holds, or the process has ended."""
    deadline = time.monotonic() + DEADLINE
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline, "the run did not get there in time"
        time.sleep(0.002)


def _kill_in_the_middle_of_saving(process: Process, directory: Path) -> None:
    wait_for(process, lambda: bool(checkpoints.steps(directory) and _there(directory, "*tmp*")))
    process.kill()


def _kill_in_the_middle_of_deleting(process: Process, directory: Path) -> None:
    wait_for(process, lambda: _there(directory, "*.going"))
    process.kill()


def _kill(process: Process, directory: Path) -> None:
    _let_it_begin(process, directory)
    process.kill()


def _terminate(process: Process, directory: Path) -> None:
    _let_it_begin(process, directory)
    process.terminate()


def _interrupt(process: Process, directory: Path) -> None:
    _let_it_begin(process, directory)
    process.send_signal(signal.SIGINT)


def _interrupt_twice(process: Process, directory: Path) -> None:
    _interrupt(process, directory)
    time.sleep(0.001)
    process.send_signal(signal.SIGINT)


def _fill_the_disk(process: Process, directory: Path) -> None:
    """No file gets longer than the metrics are, which is what a full disk looks like in the end."""
    _let_it_begin(process, directory)
    length = (directory / "metrics.jsonl").stat().st_size
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (length, resource.RLIM_INFINITY))


def _let_it_begin(process: Process, directory: Path) -> None:
    before = len(losses(directory))
    wait_for(process, lambda: len(losses(directory)) > before)


def _there(directory: Path, pattern: str) -> bool:
    return next(directory.glob(pattern), None) is not None


@dataclass(frozen=True)
class Way:
    """A way to interrupt a run."""

    strike: Callable[[Process, Path], None]
    exit_code: int
    message: str  # in what the run says


WAYS: Mapping[str, Way] = {
    "kill": Way(_kill, -9, ""),
    "kill in the middle of saving": Way(_kill_in_the_middle_of_saving, -9, ""),
    "kill in the middle of deleting": Way(_kill_in_the_middle_of_deleting, -9, ""),
    "SIGTERM": Way(_terminate, 143, "Run the same command to continue."),
    "Ctrl-C": Way(_interrupt, 130, "Run the same command to continue."),
    "Ctrl-C twice": Way(_interrupt_twice, 130, ""),
    "full disk": Way(_fill_the_disk, 1, "error: cannot "),
}


def interrupt(directory: Path, way: Way, delay: float = 0.0) -> None:
    """Starts or resumes the run, and interrupts it `delay` seconds after its first step.

    What it leaves behind must be sound.
    """
    process = run(directory)
    if delay:
        _let_it_begin(process, directory)
        time.sleep(delay)
    way.strike(process, directory)
    _, errors = process.communicate(timeout=DEADLINE)
    if process.returncode == 0:
        return  # it had ended before
    assert process.returncode == way.exit_code, errors
    assert way.message in errors, errors
    assert "Traceback" not in errors, errors
    complete = checkpoints.steps(directory)
    assert list(checkpoints.sound_steps(directory, move_aside=False)) == complete
    assert len(complete) <= 3
    if way.exit_code != -9:
        assert not _there(directory, "*tmp*") or way is WAYS["Ctrl-C twice"], errors


_TIMES = flags.DEFINE_integer("times", 20, "How often the run is interrupted.")
_WAYS = flags.DEFINE_list("ways", list(WAYS), "Ways to choose from.")
_SEED = flags.DEFINE_integer("seed", None, "Of the ways and moments.")


def main(arguments: list[str]) -> None:
    seed = _SEED.value if _SEED.value is not None else time.time_ns() % 10_000
    dice = random.Random(seed)
    print(f"--seed={seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        expected = finish(Path(folder, "uninterrupted"))
        directory = Path(folder, "interrupted")
        for _ in range(_TIMES.value):
            name = dice.choice(_WAYS.value)
            interrupt(directory, WAYS[name], dice.random())
            print(f"{name}: {checkpoints.steps(directory)}", flush=True)
            if len(losses(directory)) >= STEPS:
                assert finish(directory) == expected
                directory = Path(folder, f"interrupted-{dice.random()}")
        assert finish(directory) == expected
    print("the losses are the same")


if __name__ == "__main__":
    app.run(main)
