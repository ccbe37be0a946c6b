"""``neuronjax maxtext``: MaxText's own trainer and ahead-of-time compiler, for emulated machines.

Of MaxText's inside this relies on its table of machines (``accelerator_to_spec_map``), on the
functions that compile a step ahead of time (``train_compile.jit_and_compile``), read settings
(``pyconfig.initialize``) and multiply axes (``max_utils.fill_unspecified_mesh_axes``), and on the
names of its settings.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from neuronjax import options
from neuronjax.cli import scripts
from neuronjax.cli.arguments import amount, whole
from neuronjax.errors import ConfigurationError, did_you_mean
from neuronjax.machine.machine import Machine
from neuronjax.planning.estimate import DEFAULT_TARGET, of_workload, setting_of
from neuronjax.planning.prices import price_for, read_prices
from neuronjax.planning.record import Estimate
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.workload import Workload

TRAINER = "maxtext.trainers.pre_train.train"
COMPILER = "maxtext.trainers.pre_train.train_compile"
MACHINES = "maxtext.utils.accelerator_to_spec_map"
SETTINGS = "maxtext.configs.pyconfig"
AXES = "maxtext.utils.max_utils"

_READERS = ((SETTINGS, "initialize"), (AXES, "fill_unspecified_mesh_axes"))
"""The functions of MaxText that find out what is wrong with settings."""
_QUOTED = re.compile("'([^']*)'")
_MANY_NAMES = 8
"""Names in a refusal that are not all repeated."""
_PRODUCT = "does not match the product of"
"""What MaxText's assertions say about axes."""
_AXES = (
    ". Choose ici_…_parallelism that multiply to the cores of an instance and dcn_…_parallelism to"
    " the number of instances; one of each may be -1, which is what the others leave"
)
_ALONE = "coordinator_address should be defined"
"""Part of what JAX says where nothing tells it of other processes."""

FITS, DOES_NOT_FIT, RAISED = 0, 1, 2
"""Exit codes."""


@dataclass(frozen=True)
class Need:
    """The value that a setting of MaxText must have, as there are no Pallas kernels for the
    chip."""

    value: str
    allowed: tuple[str, ...]
    reason: str


NEEDS = {
    "attention": Need("dot_product", ("dot_product",), "the other kinds are Pallas kernels"),
    "megablox": Need("False", ("false",), "megablox is a Pallas kernel"),
    "use_tokamax_gmm": Need("False", ("false",), "tokamax' products are Pallas kernels"),
    "use_tokamax_splash": Need("False", ("false",), "tokamax' attention is a Pallas kernel"),
    "use_mhc_pallas_kernel": Need("False", ("false",), "it is a Pallas kernel"),
}
"""Settings that choose Pallas kernels for TPUs and GPUs, which the chip cannot run."""

DEFAULTS = {
    "hardware": "tpu",
    "skip_jax_distributed_system": "True",
    "enable_goodput_recording": "False",
    "monitor_goodput": "False",
}
"""Settings whose defaults reach for Google's cloud, or for devices that are none of ours."""

AHEAD_DEFAULTS = {"sparse_matmul": "False"}
"""Settings of a step that is compiled for many cores: experts with a capacity, in place of rows
sorted by expert, whose number depends on data."""

DESCRIPTION = """\
Runs MaxText (package `maxtext`) unmodified on an emulated machine, or compiles its training step
ahead of time for one and says what a step would take. SETTING are MaxText's own, NAME=VALUE; the
first may be a YAML file in place of MaxText's base.yml. Settings that the chip needs are added:
attention=dot_product, megablox=False and the like. What needs Pallas kernels is refused by name.

Examples:
  neuronjax maxtext train --target=trn2.3xlarge run_name=first base_output_directory=runs \\
    dataset_type=synthetic steps=5 model_name=default per_device_batch_size=1
  neuronjax maxtext compile --target=trn2.48xlarge model_name=llama3-8b ici_fsdp_parallelism=64 \\
    per_device_batch_size=1 max_target_length=4096 remat_policy=full
  neuronjax profile -m neuronjax maxtext train ...
  neuronjax launch --hosts=2 -m neuronjax maxtext train ...

Exit codes: 0 it ran, or fits; 1 it does not fit in a core's memory (the estimate is printed anyway,
with what to change); 2 it failed, or arguments were wrong.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="what", required=True, metavar="train|compile")
    train = kinds.add_parser("train", help="run MaxText's trainer on the emulated machine")
    train.add_argument("--target", help="machine, such as trn1.32xlarge (default: as configured)")
    train.set_defaults(work=_train)
    step = kinds.add_parser("compile", help="estimate a step that is compiled ahead of time")
    step.add_argument("--target", default=DEFAULT_TARGET, help="(default: %(default)s)")
    step.add_argument(
        "--instances", type=whole(1), default=1, metavar="N",
        help="machines to compile for, connected by EFA (default: %(default)s)",
    )  # fmt: skip
    step.add_argument("--lnc", type=whole(1), help="physical cores per logical core")
    step.add_argument(
        "--machine", metavar="FILE", help="TOML file that changes the target (what if)"
    )
    step.add_argument("--price", type=amount, metavar="USD", help="per instance and hour")
    step.add_argument("--prices", metavar="FILE", help="TOML file of prices by target")
    step.add_argument("--flags", help="compiler flags (default: NEURON_CC_FLAGS)")
    step.add_argument("--format", choices=("text", "json"), default="text")
    step.set_defaults(work=_compile)
    for kind in (train, step):
        kind.add_argument("settings", nargs="*", metavar="SETTING", help="MaxText's, NAME=VALUE")


def run(arguments: argparse.Namespace) -> int:
    """Trains in this process, which should end soon after, or prints the estimate of a step."""
    if importlib.util.find_spec("maxtext") is None:
        raise ConfigurationError(
            "the package maxtext is not installed in this environment; the page on MaxText of the"
            " documentation says what it needs: Python 3.12, and pip install --no-deps maxtext."
        )
    options.set_default_variable("DECOUPLE_GCLOUD", "TRUE")
    code: int = arguments.work(arguments)
    return code


def settings_for_chip(given: Sequence[str], defaults: dict[str, str]) -> list[str]:
    """MaxText's arguments, a YAML file first, with the settings that the chip needs.

    ConfigurationError: a setting is malformed, or chooses a Pallas kernel.
    """
    file, rest = _base(), list(given)
    if rest and "=" not in rest[0]:
        file = rest.pop(0)
    chosen: dict[str, str] = {}
    for text in rest:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(
                f"{text!r} is not a setting of MaxText; write it as NAME=VALUE, after one YAML "
                "file at most."
            )
        chosen[name] = value
    for name, need in NEEDS.items():
        if name in chosen and chosen[name].lower() not in need.allowed:
            raise ConfigurationError(
                f"MaxText's setting {name}={chosen[name]} needs a Pallas kernel that the chip "
                f"cannot run ({need.reason}); set {name}={need.value}, or leave it out."
            )
    needed = {name: need.value for name, need in NEEDS.items() if name in _names(file)}
    return [file, *(f"{name}={value}" for name, value in ({**defaults, **needed} | chosen).items())]


def _base() -> str:
    package = importlib.import_module("maxtext").__path__[0]
    return str(Path(package) / "configs" / "base.yml")


def _names(file: str) -> set[str]:
    """Settings that this version of MaxText knows."""
    text = Path(_base()).read_text() + (Path(file).read_text() if Path(file).is_file() else "")
    return {line.partition(":")[0].strip() for line in text.splitlines()}


def _train(arguments: argparse.Namespace) -> int:
    if arguments.target is not None:
        Machine.create(arguments.target)
        options.pin(target=arguments.target)
    jax.config.update("jax_platforms", "neuron,cpu")
    words = settings_for_chip(arguments.settings, DEFAULTS)
    _join_processes()
    with _refusing_in_a_line():
        outcome = scripts.run(TRAINER, words, True, 0)
    return FITS if outcome.error is None else RAISED


def _join_processes() -> None:
    """Connects to the other processes, if a launcher or cluster that JAX knows started several."""
    try:
        jax.distributed.initialize()
    except ValueError as error:
        if _ALONE not in str(error):
            raise ConfigurationError(f"the processes cannot connect: {error}") from error


@contextlib.contextmanager
def _refusing_in_a_line() -> Iterator[None]:
    """Raises ConfigurationError at its end if MaxText refuses settings meanwhile."""
    refused: list[ConfigurationError] = []
    with contextlib.ExitStack() as stack:
        for module, name in _READERS:
            stack.enter_context(_ending_at_errors(module, name, refused))
        try:
            yield
        except SystemExit:
            if not refused:
                raise
    if refused:
        raise refused[0]


@contextlib.contextmanager
def _ending_at_errors(
    module_name: str, name: str, refused: list[ConfigurationError]
) -> Iterator[None]:
    """Within it, an error of a function ends MaxText's program, and is told in `refused`."""
    module: Any = importlib.import_module(module_name)
    function = getattr(module, name)

    def call(*arguments: object, **others: object) -> object:
        try:
            return function(*arguments, **others)
        except (ValueError, OSError, AssertionError, SystemExit) as error:
            cause = error.__context__ if isinstance(error, SystemExit) else error
            refused.append(_refusal(cause))
            raise SystemExit(RAISED) from error

    setattr(module, name, call)
    try:
        yield
    finally:
        setattr(module, name, function)


def _refusal(error: BaseException | None) -> ConfigurationError:
    """What MaxText, or pydantic for it, says of a setting, with the names that are most like what
    was given in place of all."""
    told = str(error)
    errors: Callable[[], list[dict[str, Any]]] | None = getattr(error, "errors", None)
    if errors is not None:
        first = errors()[0]
        given = ".".join(map(str, first["loc"]))
        told = f"{given}={first['input']!r}: {first['msg']}" if given else first["msg"]
    named = [match[1] for match in _QUOTED.finditer(told)]
    if len(named) > _MANY_NAMES:
        wrong, *known = named
        told = f"it does not know {wrong!r}.{did_you_mean(wrong, known)}"
    return ConfigurationError(
        f"MaxText refuses the settings: {told}{_AXES if _PRODUCT in told else ''}"
    )


def _compile(arguments: argparse.Namespace) -> int:
    setting = setting_of(arguments.target, arguments.lnc, arguments.machine, flags=arguments.flags)
    machine = setting.machine
    prices = read_prices(arguments.prices) if arguments.prices else {}
    price = price_for(machine.target, arguments.price, prices)
    estimates: list[Estimate] = []

    def estimate(step: Workload, mesh: Mesh) -> None:
        axes = {axis: size for axis, size in mesh.shape.items() if size > 1}
        estimates.append(of_workload(step, setting, abstract_mesh(axes or None), price=price))

    words = settings_for_chip(
        [
            *arguments.settings,
            f"compile_topology={machine.target}",
            f"compile_topology_num_slices={arguments.instances}",
        ],
        {**DEFAULTS, **AHEAD_DEFAULTS},
    )
    with scripts.stdout_on_stderr() as out:
        jax.config.update("jax_platforms", "cpu")
        with _compiling_with(estimate, machine), _refusing_in_a_line():
            importlib.import_module(COMPILER).main([COMPILER, *words])
        for step in estimates:
            out.write(f"{step if arguments.format == 'text' else step.to_json()}\n")
        out.flush()
    return FITS if all(step.fits for step in estimates) else DOES_NOT_FIT


class _Configuration(Protocol):
    """The settings of MaxText that say what a step processes."""

    global_batch_size_to_train_on: int
    max_target_length: int
    model_name: str


class _Estimated:
    """A stand-in for the compiled step, in whose place an estimate has been made."""

    def cost_analysis(self) -> str:
        return "see below"

    memory_analysis = cost_analysis


@contextlib.contextmanager
def _compiling_with(estimate: Callable[[Workload, Mesh], None], machine: Machine) -> Iterator[None]:
    """Within it, MaxText knows the machine, and estimates its steps in place of compiling them."""
    machines: Any = importlib.import_module(MACHINES)
    compiler: Any = importlib.import_module(COMPILER)
    table = machines.UserFacingNameToSystemCharacteristics
    table[machine.target] = machines.SystemCharacteristics(
        "neuron", machine.target, None, None, machine.core_count, None
    )
    whole_compile = compiler.jit_and_compile

    def jit_and_estimate(
        func: Callable[..., Any],
        func_input_args: tuple[Any, ...],
        func_input_kwargs: dict[str, Any],
        mesh: Mesh,
        in_shardings: Any,
        out_shardings: Any,
        static_argnums: tuple[int, ...],
        donate_argnums: tuple[int, ...] | int,
        config: _Configuration,
        logical_axis_rules: AbstractContextManager[None],
    ) -> _Estimated:
        with jax.set_mesh(mesh), logical_axis_rules:
            step = jax.jit(
                func,
                in_shardings=in_shardings,
                out_shardings=out_shardings,
                static_argnums=static_argnums,
                donate_argnums=donate_argnums,
            )
            tokens = config.global_batch_size_to_train_on * config.max_target_length
            workload = Workload(
                fn=step,
                arguments=func_input_args,
                tokens=tokens,
                name=f"MaxText {config.model_name}",
            )
            estimate(workload, mesh)
        return _Estimated()

    compiler.jit_and_compile = jit_and_estimate
    try:
        yield
    finally:
        compiler.jit_and_compile = whole_compile
