"""``neuronjax nki``: checks, runs, times, profiles or prints a kernel from a file."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

import neuronjax
from neuronjax import nki
from neuronjax.cli.command import Command
from neuronjax.emulate.core import DataflowOrder, ProgramOrder
from neuronjax.errors import ConfigurationError, NeuronError, ScriptError, did_you_mean
from neuronjax.machine.chips import CHIPS
from neuronjax.nki.targets import chip_of
from neuronjax.profiling.store import REPORT
from neuronjax.profiling.text import table
from neuronjax.profiling.text import text as summary
from neuronjax.program.text import format as text_of
from neuronjax.timing.calibration import CALIBRATION

_DESCRIPTION = """\
Traces a kernel in a file with the given shapes, and says what the chip would refuse (check), what
its results are and whether they depend on the order in which engines run (run), how long it takes
and which engines are busy (bench), what is slow and why (profile, which writes a report to a
folder), or what its program looks like (print). The arguments of a run are normally distributed,
and the same every time; integers are 0.

A kernel is a function of the file that is marked by nki.jit; `import nki` works in it. KERNEL[2]
has two programs, on the physical cores of a logical core.

Example: neuronjax nki bench softmax.py:softmax --shapes=256x64,256x1:bfloat16 --set scale=2.0
"""

_PLACE = re.compile(r"(.+):(\w+)(?:\[(\d+)\])?")
_SHAPE = re.compile(r"(\d+(?:x\d+)*)(?::(\w+))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("kernel", metavar="FILE:KERNEL")
    parser.add_argument(
        "--shapes",
        required=True,
        type=_arrays,
        metavar="SHAPES",
        help="the arguments' shapes: 128x64,128x64:bfloat16 (default dtype: float32)",
    )
    parser.add_argument(
        "--set",
        dest="values",
        action="append",
        default=[],
        type=_value,
        metavar="NAME=VALUE",
        help="an argument that is no array: a number, a string or another literal of Python",
    )
    parser.add_argument(
        "--to",
        type=Path,
        default=Path("runs/nki_profile"),
        metavar="FOLDER",
        help="folder for the report of a profile (default: %(default)s)",
    )
    parser.add_argument(
        "--record_to",
        type=Path,
        metavar="FILE",
        help="record a run in program order, for `neuronjax replay`",
    )
    parser.add_argument(
        "--target",
        help="machine or generation, such as trn2 or trn1.2xlarge (default: as configured)",
    )


def _value(text: str) -> tuple[str, Any]:
    name, is_given, value = text.partition("=")
    if not is_given or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not an argument such as scale=2.0")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _arrays(text: str) -> list[np.ndarray]:
    arrays = []
    for part in text.split(","):
        match = _SHAPE.fullmatch(part)
        if match is None:
            raise argparse.ArgumentTypeError(f"{part!r} is not a shape such as 128x64:bfloat16")
        name = match[2] or "float32"
        dtype = getattr(ml_dtypes, name, None) or getattr(np, name, None)
        if dtype is None:
            raise argparse.ArgumentTypeError(f"{name!r} is not a dtype")
        shape = tuple(map(int, match[1].split("x")))
        arrays.append(np.broadcast_to(np.zeros((), dtype), shape))
    return arrays


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0; what the chip refuses is an error."""
    with _lines_of_the_file():
        kernel = _kernel(arguments.kernel)
        print(ACTIONS[arguments.action](kernel, arguments))
    return 0


@contextmanager
def _lines_of_the_file() -> Iterator[None]:
    """ScriptError: the file's own code, or the kernel's, has raised what is no error of ours."""
    try:
        yield
    except (NeuronError, OSError):
        raise
    except Exception as error:
        own = str(Path(neuronjax.__file__).parent)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            f"{f.filename}:{f.lineno}" for f in frames if not f.filename.startswith((own, "<"))
        ]
        if isinstance(error, SyntaxError):
            lines.append(f"{error.filename}:{error.lineno}")
        raise ScriptError(f"{lines[-1]}: {type(error).__name__}: {error}") from None


def _kernel(place: str) -> nki.Kernel:
    """The kernel of a place such as `kernels.py:softmax` or `kernels.py:softmax[2]`.

    Raises:
      ConfigurationError: the file has no such kernel; OSError: there is no such file.
    """
    match = _PLACE.fullmatch(place)
    if match is None:
        raise ConfigurationError(f"{place!r} does not name a kernel; write FILE:KERNEL.")
    file, name, programs = match.groups()
    path = Path(file)
    path.open().close()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{file} is not a Python file.")
    nki.install()
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    kernels = {key: value for key, value in vars(module).items() if isinstance(value, nki.Kernel)}
    if name not in kernels:
        there = ", ".join(kernels) or "none"
        raise ConfigurationError(
            f"{file} has no kernel {name!r}; its functions marked with nki.jit: {there}."
            f"{did_you_mean(name, kernels)}"
        )
    return kernels[name][int(programs)] if programs else kernels[name]


def _check(kernel: nki.Kernel, given: argparse.Namespace) -> str:
    traced = kernel.trace(*given.shapes, target=given.target, **dict(given.values))
    refused = f"{traced.program.name}: {traced.program.target.chip} accepts it"
    return "\n".join([refused, *traced.notes])


def _run(kernel: nki.Kernel, given: argparse.Namespace) -> str:
    values = _arguments(given.shapes)
    runs = ((ProgramOrder(), given.record_to), (DataflowOrder(seed=0, adversarial=True), None))
    results, others = (
        jax.tree_util.tree_leaves_with_path(
            nki.simulate(kernel, order, given.target, record_to=file)(
                *(value.copy() for value in values), **dict(given.values)
            )
        )
        for order, file in runs
    )
    rows = [
        (
            f"result{jax.tree_util.keystr(path)}",
            f"{value.dtype.name}{list(value.shape)}",
            *_statistics(value),
            "no" if value.tobytes() == other.tobytes() else "yes",
        )
        for (path, value), (_, other) in zip(results, others, strict=True)
    ]
    titles = ["", "type", "least", "mean", "greatest", "not finite", "depends on the order"]
    return table(titles, rows)


def _arguments(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Normally distributed numbers in the arrays' types; integers are 0, which is an index, too."""
    generator = np.random.default_rng(0)
    return [
        np.zeros(array.shape, array.dtype)
        if np.issubdtype(array.dtype, np.integer)
        else generator.standard_normal(array.shape, np.float32).astype(array.dtype)
        for array in arrays
    ]


def _statistics(value: np.ndarray) -> tuple[str, ...]:
    """Least, mean and greatest of the finite numbers, and how many are others."""
    wide = value.astype(np.float64).reshape(-1)
    finite = wide[np.isfinite(wide)]
    if not finite.size:
        return "", "", "", str(wide.size)
    numbers = (finite.min(), finite.mean(), finite.max())
    return (*(f"{number:.4g}" for number in numbers), str(wide.size - finite.size))


def _bench(kernel: nki.Kernel, given: argparse.Namespace) -> str:
    time = nki.benchmark(kernel, *given.shapes, target=given.target, **dict(given.values))
    busy = [
        (name, f"{nanoseconds / 1e3:.2f}", f"{time.share(name):.1%}")
        for name, nanoseconds in time.busy_ns.items()
        if nanoseconds
    ]
    chip = chip_of(given.target)
    facts = (
        f"{time.program} on a core of {chip}: {time.total_ns / 1e3:.2f} µs on the device, "
        f"including {time.launch_ns / 1e3:.2f} for the launch; {time.flops / 1e6:,.2f} MFLOP, "
        f"{time.dma_bytes / 1e3:,.1f} kB moved, {time.instruction_count} instructions"
    )
    call = CALIBRATION.host_call_ns[CHIPS[chip].core.version]
    if call:
        facts += (
            f"\nThe call of a program by its host takes {call / 1e3:g} µs more: it is part of what "
            "neuronjax.estimate calls a step, whose time on the device is compared with this one."
        )
    assumed = "".join(f"\nassumed: {what}" for what in time.assumed)
    return facts + assumed + "\n\n" + table(["busy", "µs", "of the time"], busy)


def _profile(kernel: nki.Kernel, given: argparse.Namespace) -> str:
    keywords = dict(given.values)
    recorded = nki.profile(kernel, *given.shapes, folder=given.to, target=given.target, **keywords)
    return f"{summary(recorded)}\n\nThe report is {given.to / REPORT}."


def _print(kernel: nki.Kernel, given: argparse.Namespace) -> str:
    traced = kernel.trace(*given.shapes, target=given.target, **dict(given.values))
    return text_of(traced.program)


ACTIONS: Mapping[str, Callable[[nki.Kernel, argparse.Namespace], str]] = {
    "check": _check,
    "run": _run,
    "bench": _bench,
    "profile": _profile,
    "print": _print,
}
"""Name -> what it prints."""

COMMAND = Command(
    help="check, run, time, profile or print a kernel written in NKI",
    description=_DESCRIPTION,
    add_arguments=add_arguments,
    run=run,
    runs_programs=True,
)
