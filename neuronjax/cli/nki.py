"""``neuronjax nki``: checks, runs, times, profiles, compares or prints kernels of files."""

from __future__ import annotations

import argparse
import ast
import functools
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
from neuronjax.cli.arguments import whole
from neuronjax.emulate.core import DataflowOrder, ProgramOrder
from neuronjax.errors import ConfigurationError, NeuronError, ScriptError
from neuronjax.nki.gym.agreement import Bounds
from neuronjax.nki.gym.difference import Difference
from neuronjax.nki.gym.evaluation import OK, json_text, judge
from neuronjax.nki.gym.files import Place, kernel_at
from neuronjax.nki.gym.limits import Limits
from neuronjax.nki.gym.trials import Trials, evaluate_files
from neuronjax.nki.migration.migrating import migrate
from neuronjax.planning.runners import Runner, on_ray
from neuronjax.profiling.store import REPORT
from neuronjax.profiling.text import table
from neuronjax.profiling.text import text as summary
from neuronjax.program.text import format as text_of

DESCRIPTION = """\
Traces kernels of files with given arguments, and says what the chip would refuse (check), what
their results are and whether they depend on the order in which engines run (run), how long they
take, what bounds them and which lines cost most (bench), what is slow and why (profile, which
writes a report to a folder), what differs between two (compare), what their program looks like
(print), or how a file of NKI 0.x reads in the present dialect (migrate). The arguments of a run are
normally distributed, and the same every time; integers are 0.

A kernel is a function of the file that is marked by nki.jit; `import nki` and `import
neuronxcc.nki` work in it. KERNEL[2] has two programs, on the physical cores of a logical core;
without a name it is the only kernel of the file.

With --task, bench judges any number of kernels by a file with inputs(), which returns their
arguments, and reference(*inputs), which returns their results: values within bounds (RTOL and ATOL
of the file), races, capacity, time, counters. Each candidate runs in a process of its own, which
may write to a folder of its own alone, and which is ended, and named, if it opens a socket, starts
a program, or takes more than --seconds, --memory or --output. --json prints all of it.

Examples: neuronjax nki bench softmax.py:softmax --shapes=256x64,256x1:bfloat16 --set scale=2.0
          neuronjax nki bench candidates/*.py --task=softmax_task.py --processes=8 --json
          neuronjax nki compare before.py after.py --task=softmax_task.py
          neuronjax nki migrate old.py:kernel --shapes=256x64 --to=new.py

Exit codes of bench and compare: 0 all is well, 1 no kernel is ok; of migrate: 0 all is translated
and has the same values, 1 not all.
"""

_FOLDER = Path("runs/nki_profile")
OK_CODE, NONE_OK = 0, 1
"""Exit codes."""

_SHAPE = re.compile(r"(\d+(?:x\d+)*)(?::(\w+))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=(*ACTIONS, "compare", "migrate"))
    parser.add_argument("kernels", nargs="+", metavar="FILE[:KERNEL]")
    parser.add_argument(
        "--shapes",
        type=_arrays,
        default=[],
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
        "--task",
        type=Path,
        metavar="FILE",
        help="bench, compare: a file with inputs() and reference(*inputs), in place of --shapes",
    )
    parser.add_argument("--json", action="store_true", help="bench, compare: print JSON")
    parser.add_argument(
        "--processes", type=whole(1), default=1, metavar="N",
        help="bench: how many candidates are judged side by side (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--ray", metavar="ADDRESS",
        help="bench: judge each candidate on a core of a Ray cluster, which sees the same files: "
        "HOST:PORT, auto, or local for one on this machine",
    )  # fmt: skip
    for name, unit, what, default in (
        ("seconds", "S", "seconds of computing time", Limits.seconds),
        ("memory", "MIB", "MiB of memory", Limits.mebibytes),
        ("output", "KIB", "KiB of output", Limits.output_kibibytes),
    ):
        parser.add_argument(
            f"--{name}", type=whole(1), default=default, metavar=unit,
            help=f"bench, compare: {what} that a candidate may take (default: %(default)s)",
        )  # fmt: skip
    parser.add_argument(
        "--to",
        type=Path,
        metavar="PATH",
        help=f"folder for the report of a profile (default: {_FOLDER}), or file for what migrate "
        "writes (default: it is printed)",
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
    """Exit code 0, or 1 where no candidate is ok; what the chip refuses is an error."""
    _check(arguments)
    with _lines_of_the_file():
        if arguments.action == "compare":
            return _compare(arguments)
        if arguments.task is not None or arguments.json or len(arguments.kernels) > 1:
            return _bench_all(arguments)
        nki.install()
        if arguments.action == "migrate":
            return _migrate(arguments)
        kernel = kernel_at(Place.of(arguments.kernels[0]))
        print(ACTIONS[arguments.action](kernel, arguments))
    return 0


def _check(given: argparse.Namespace) -> None:
    """Raises ``ConfigurationError`` for options that do not go with the action."""
    count = len(given.kernels)
    if given.action == "compare" and count != 2:
        raise ConfigurationError(f"compare takes two kernels, and got {count}.")
    judges = given.action in ("bench", "compare")
    for name, is_given in (("--task", given.task is not None), ("--json", given.json)):
        if is_given and not judges:
            raise ConfigurationError(f"{given.action} takes no {name}; bench and compare do.")
    if count > 1 and not judges:
        raise ConfigurationError(f"{given.action} takes one kernel, and got {count}.")
    if given.task is not None and (given.shapes or given.values):
        raise ConfigurationError("--task has the arguments; leave out --shapes and --set.")
    if given.task is None and not given.shapes:
        raise ConfigurationError("give the arguments' shapes (--shapes=128x64), or a --task.")


def _trials(given: argparse.Namespace) -> Trials:
    judged: Callable[[list[str]], Trials] = functools.partial(
        evaluate_files,
        task=given.task,
        shapes=[(array.shape, array.dtype.name) for array in given.shapes],
        values=dict(given.values),
        target=given.target,
        processes=given.processes,
        limits=Limits(given.seconds, given.memory, given.output),
    )
    if given.ray is None:
        return judged(given.kernels)
    runner: Runner[list[str], Trials] = on_ray(given.ray)
    parts = dict(runner(judged, [[kernel] for kernel in given.kernels]))
    judgements = [part for _, part in sorted(parts.items()) if part is not None]
    rows = [row for part in judgements for row in part.evaluations]
    return Trials(judgements[0].target, judgements[0].limits, rows)


def _bench_all(given: argparse.Namespace) -> int:
    trials = _trials(given)
    print(json_text(trials.to_json()) if given.json else trials)
    return OK_CODE if any(row["status"] == OK for row in trials.evaluations) else NONE_OK


def _compare(given: argparse.Namespace) -> int:
    trials = _trials(given)
    before, after = trials.evaluations
    difference = Difference(before, after)
    print(json_text(difference.to_json()) if given.json else difference)
    return OK_CODE if all(row["status"] == OK for row in trials.evaluations) else NONE_OK


def _migrate(given: argparse.Namespace) -> int:
    place = Place.of(given.kernels[0])
    name = kernel_at(place).function.__name__
    arrays = _arguments(given.shapes)
    migration = migrate(place.path, name, arrays, dict(given.values), given.target)
    if given.to is None:
        print(migration.text)
    else:
        given.to.write_text(migration.text)
    print(migration.report(str(place.path)), file=sys.stderr)
    return OK_CODE if migration.is_same else NONE_OK


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


def _accept(kernel: nki.Kernel, given: argparse.Namespace) -> str:
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
    traced = kernel.trace(*given.shapes, target=given.target, **dict(given.values))
    return str(judge(traced.native, None, (), Bounds(), traced.notes))


def _profile(kernel: nki.Kernel, given: argparse.Namespace) -> str:
    keywords = dict(given.values)
    folder = given.to or _FOLDER
    recorded = nki.profile(kernel, *given.shapes, folder=folder, target=given.target, **keywords)
    return f"{summary(recorded)}\n\nThe report is {folder / REPORT}."


def _print(kernel: nki.Kernel, given: argparse.Namespace) -> str:
    traced = kernel.trace(*given.shapes, target=given.target, **dict(given.values))
    return text_of(traced.program)


ACTIONS: Mapping[str, Callable[[nki.Kernel, argparse.Namespace], str]] = {
    "check": _accept,
    "run": _run,
    "bench": _bench,
    "profile": _profile,
    "print": _print,
}
"""Name -> what it prints."""
