"""``neuronjax doctor``: whether the installation works, and what is wrong if it does not."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import neuronjax
from neuronjax import __version__, options
from neuronjax.errors import NeuronError
from neuronjax.jaxlib_api import LIBNEURONXLA
from neuronjax.jaxlib_api.versions import TESTED
from neuronjax.planning import what_if

DESCRIPTION = """\
Checks versions, other plugins, variables and the machine that they choose, and runs a small program
on the platform in a separate process. Exit code 1: something is wrong.

Example: neuronjax doctor
"""

EXTRAS = ("profile", "monitor")
"""The optional parts of the package."""

GROUPS = ("models", "data", "chat", "pieces", "serve", "tensorboard")
"""What the programs of a checkout need."""

CHECKOUT = Path(neuronjax.__file__).parents[1] / "pyproject.toml"
"""Where the package is not installed as a wheel."""

SECONDS = 120
"""How long the small program may take."""

PROGRAM = """
import jax, jax.numpy as jnp
devices = jax.devices()
assert devices[0].platform == "neuron", devices
x = jnp.arange(8.0)
assert float(jax.jit(lambda x: (x * x).sum())(x)) == 140.0
print(f"{len(devices)} devices, the first is {devices[0].device_kind}")
"""


@dataclass(frozen=True)
class Check:
    """What a check says; `is_fine` None: worth knowing, and nothing is wrong."""

    is_fine: bool | None
    text: str


def versions() -> Iterator[Check]:
    """Checks the versions of Python, jax and jaxlib."""
    yield Check(
        None, f"neuronjax {__version__}, Python {platform.python_version()}, {sys.platform}"
    )
    oldest, newest = TESTED
    for name in ("jax", "jaxlib"):
        installed = importlib.metadata.version(name)
        minor = installed.split(".")[:2]
        tested = minor in (oldest.split(".")[:2], newest.split(".")[:2])
        untested = f" (not tested; tested are versions {oldest} to {newest})"
        yield Check(True if tested else None, f"{name} {installed}{'' if tested else untested}")


def plugins() -> Iterator[Check]:
    """Who offers JAX the platform."""
    points = importlib.metadata.entry_points(group="jax_plugins", name="neuron")
    if not any(point.value == "neuronjax" for point in points):
        yield Check(
            False, "JAX does not find the platform neuron: install it (pip install neuronjax)"
        )
    if importlib.util.find_spec(LIBNEURONXLA) is not None:
        emulated = options.is_emulation_asked_for()
        yield Check(
            None,
            f"{LIBNEURONXLA} is installed: platform neuron is "
            + ("emulated here (NEURONJAX_EMULATE=1)" if emulated else "AWS's own; "
               "set NEURONJAX_EMULATE=1 to emulate it"),
        )  # fmt: skip


def variables() -> Iterator[Check]:
    """Variables, and the machine that they choose."""
    for name in options.unknown_variables():
        yield Check(False, f"variable {name} is unknown: docs/options.md lists all variables")
    chosen = options.load()
    machine, _ = what_if.machine_of(chosen.target, chosen.lnc, None)
    yield Check(
        True,
        f"target {machine.target}: {machine.core_count} logical cores, numerics "
        f"{chosen.numerics}, executor {chosen.executor}, legality {chosen.legality}",
    )


def execution() -> Iterator[Check]:
    """A small program on the platform."""
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=options.environment(options.load().target),
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        yield Check(False, f"a small program did not finish within {SECONDS} seconds")
        return
    took = time.monotonic() - begin
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Check(False, f"a small program failed: {last}")
        return
    yield Check(True, f"a small program ran in {took:.1f} s: {done.stdout.strip()}")


def extras() -> Iterator[Check]:
    """Optional parts, and what they lack."""
    lacking: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("neuronjax") or []:
        needed = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if needed is None:
            continue
        missing = lacking.setdefault(needed[2], [])
        if not _is_installed(needed[1]):
            missing.append(needed[1])
    for extra in EXTRAS:
        yield _optional(f"extra {extra}", lacking.get(extra, []), f"'neuronjax[{extra}]'")


def groups() -> Iterator[Check]:
    """What the programs of a checkout lack."""
    if not CHECKOUT.is_file():
        return
    named = tomllib.loads(CHECKOUT.read_text()).get("dependency-groups", {})
    for group in GROUPS:
        wanted = [re.split(r"[^\w.-]", line)[0] for line in named.get(group, [])]
        missing = [name for name in wanted if not _is_installed(name)]
        yield _optional(f"group {group}", missing, f"--group {group}")


def _optional(part: str, missing: list[str], installed_by: str) -> Check:
    remedy = f"lacks {', '.join(missing)}: pip install {installed_by}"
    return Check(None, f"{part} {remedy if missing else 'is installed'}")


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


CHECKS: Mapping[str, Callable[[], Iterator[Check]]] = {
    "versions": versions,
    "plugins": plugins,
    "variables": variables,
    "execution": execution,
    "extras": extras,
    "groups": groups,
}
"""Group -> its checks, in the order in which they are made."""

MARKS = {True: "ok", False: "WRONG", None: "-"}


def checked(group: str) -> Iterator[Check]:
    """The checks of a group; an error that one meets is what is wrong."""
    try:
        yield from CHECKS[group]()
    except NeuronError as error:
        yield Check(False, str(error))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-run", action="store_true", help="do not run the small program on the platform"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints what every check says. Exit code 1: something is wrong."""
    is_wrong = False
    for group in CHECKS:
        if group == "execution" and arguments.no_run:
            continue
        for check in checked(group):
            is_wrong |= check.is_fine is False
            print(f"{MARKS[check.is_fine]:>5}  {check.text}", flush=True)
    return int(is_wrong)
