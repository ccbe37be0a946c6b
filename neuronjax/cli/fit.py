"""``neuronjax fit``: whether a model or a function suits machines, and what limits it there."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from neuronjax.cli.arguments import whole
from neuronjax.cli.workloads import add_pad, settings
from neuronjax.errors import ConfigurationError, ScriptError, WorkloadError
from neuronjax.machine.instances import find_instance
from neuronjax.planning.depth import DEPTHS
from neuronjax.planning.fit import Fit, Verdict, fit, text, to_json
from neuronjax.planning.prices import price_for, read_prices
from neuronjax.planning.runners import Processes
from neuronjax.planning.workload import Factory, load, reported
from neuronjax.torch import by_name

FITS, DOES_NOT_FIT = 0, 1
"""Exit codes."""
DEFAULT_TARGETS = ("inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge")
MODELS = "launch.model_workloads:phases"
"""What reads a model's directory; it comes with the repository's models, not with this package."""

DESCRIPTION = f"""\
Says whether a model fits on machines well, with limits or not at all, and why: what the compiler
would refuse, memory, operations that no engine has, and time compared with what its arithmetic and
its bytes need. The cores of an instance are split into replicas of every size that holds the model;
those that no other beats in both time and cost are printed. Nothing is allocated or run.

MODEL is a directory in Hugging Face's layout, a config.json, the name of a well-known checkpoint
(no file is needed, but a checkout is: its packages `models` and `launch` know the names), or
MODULE:FUNCTION as for `neuronjax estimate`. An architecture that `models` lacks is built by
transformers, on no memory, and runs through torchax (pip install neuronjax[torch] transformers).

Example: neuronjax fit meta-llama/Llama-3.1-8B --targets=trn1.32xlarge,trn2.48xlarge --batch=8

Targets: {", ".join(DEFAULT_TARGETS)} unless given.
Exit codes: 0 it fits a target, 1 it fits none, 2 there is no such model, function or machine.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a directory, config.json, or function")
    parser.add_argument("--targets", "--target", metavar="A,B,…")
    parser.add_argument("--phases", metavar="A,B,…", help="such as prefill,decode (default: all)")
    parser.add_argument("--batch", type=whole(1), help="rows per replica (default: 1)")
    parser.add_argument("--length", type=whole(1), help="length of texts, in tokens")
    parser.add_argument("--dtype", help="(default: bfloat16)")
    parser.add_argument(
        "--mesh", dest="meshes", action="append", default=[], metavar="AXES",
        help="split the cores in this way only; may be given several times",
    )  # fmt: skip
    parser.add_argument("--lnc", type=whole(1), help="physical cores per logical core")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="NAME=VALUE",
        help="a keyword of the function; numbers are passed as numbers",
    )  # fmt: skip
    add_pad(parser)
    parser.add_argument("--prices", metavar="FILE", help="TOML file of prices by target")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Prints the verdicts, and what limits each."""
    jax.config.update("jax_platforms", "cpu")
    targets = arguments.targets.split(",") if arguments.targets else DEFAULT_TARGETS
    names = [find_instance(target).name for target in targets]
    prices = read_prices(arguments.prices) if arguments.prices else {}
    fits = []
    with Processes(1) as runner:
        for (factory, depths), name in itertools.product(_factories(arguments), names):
            fits.append(
                fit(
                    factory,
                    name,
                    meshes=arguments.meshes,
                    batch=arguments.batch,
                    dtype=arguments.dtype,
                    price=price_for(name, None, prices),
                    depths=depths,
                    lnc=arguments.lnc,
                    pad=arguments.pad,
                    runner=runner,
                )
            )
            _tell(fits[-1])
    print(text(fits) if arguments.format == "text" else to_json(fits))
    return FITS if any(row.verdict in _USABLE for row in fits) else DOES_NOT_FIT


_USABLE = (Verdict.WELL, Verdict.LIMITED)


def _factories(arguments: argparse.Namespace) -> Iterator[tuple[Factory, tuple[int, int]]]:
    """Returns the workloads to judge, and the depths that stand for a deep model."""
    path = Path(arguments.model)
    if not path.exists() and ":" in arguments.model:
        yield load(arguments.model, settings(arguments.settings)), DEPTHS
        return
    chosen = arguments.phases.split(",") if arguments.phases else None
    phases = _phases(arguments.model, arguments.length)
    unknown = sorted(set(chosen or ()) - {phase.name for phase in phases})
    if unknown:
        raise ConfigurationError(
            f"--phases: {path} has no {', '.join(unknown)}; it has "
            f"{', '.join(phase.name for phase in phases)}."
        )
    for phase in phases:
        if chosen is None or phase.name in chosen:
            yield Factory(make=phase.make, name=phase.name), phase.depths


def _phases(model: str, length: int | None) -> Sequence[Any]:
    """The phases as the repository's models have them; of other architectures, transformers."""
    is_here = Path(model).exists()
    try:
        reader = _reader()
        with reported(reader.name, reader.make, None):
            return reader.make(model, length)
    except ConfigurationError as error:  # the packages are not here
        if not is_here:
            raise
        refusal = error
    except WorkloadError as error:
        if not is_here:
            raise ConfigurationError(
                f"{error.__cause__ or error} MODULE:FUNCTION works, too."
            ) from error
        if not isinstance(error.__cause__, ValueError):  # about the file, in words
            raise
        refusal = ConfigurationError(str(error.__cause__))
        if not isinstance(error.__cause__, LookupError):  # of an architecture that it knows
            raise refusal from error
    try:
        return by_name.phases(model, length)
    except ConfigurationError as error:
        raise ConfigurationError(f"{refusal} PyTorch has no model of it either: {error}") from error


def _reader() -> Factory:
    """Returns the function that makes the phases of a model's directory."""
    try:
        return load(MODELS)
    except ScriptError:
        raise ConfigurationError(
            "names and directories of models are read by the packages `models` and `launch`, which "
            "come with neuronjax's repository: run this in a checkout, or give MODULE:FUNCTION."
        ) from None
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"names and directories of models are read with {error.name}, which is not installed: "
            "pip install --group models."
        ) from None


def _tell(row: Fit) -> None:
    print(f"{row.workload} on {row.target}: {row.verdict}", file=sys.stderr)
