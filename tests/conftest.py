"""The machine every test runs on, and how tests start other processes.

The environment is set here, before anything imports jax: one trn2 chip with eight logical cores,
and JAX's own `cpu` platform with as many devices to compare with.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import hypothesis
import pytest

from tests import budget, forked, parts, quick_compile

PROJECT = forked.PROJECT
HOST_DEVICES = "--xla_force_host_platform_device_count=8"
ENVIRONMENT = {
    "JAX_PLATFORMS": "neuron,cpu",
    "NEURONJAX_TARGET": "trn2.3xlarge",
    "NEURON_LOGICAL_NC_CONFIG": "1",
    "NEURONJAX_NUMERICS": "ieee",
    "NEURONJAX_LEGALITY": "off",
    "NEURONJAX_SIMULATE": "0",
}

os.environ.update(ENVIRONMENT)
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {HOST_DEVICES}".strip()

if quick_compile.is_asked_for():
    quick_compile.set_for_all_programs()

# Shells start jobs in the background with the interrupt ignored, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402

hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

CONTINUOUS_INTEGRATION = os.environ.get("CI") == "true"

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def neuron_devices() -> list[jax.Device]:
    """The eight logical cores."""
    devices = jax.devices("neuron")
    assert len(devices) == 8
    return devices


@pytest.fixture(scope="session")
def cpu_devices() -> list[jax.Device]:
    """Eight devices of JAX's own cpu platform."""
    devices = jax.devices("cpu")
    assert len(devices) == 8, "XLA_FLAGS must keep xla_force_host_platform_device_count=8"
    return devices


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Runs code in a process of its own, on the machine of the tests unless ``env`` says else.

    The process is forked from one that has imported JAX and this project (`tests.forked`). A
    variable whose value is ``None`` is unset.
    """

    def run(
        code: str, env: dict[str, str | None] | None = None, timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        environment = _environment(env)
        return forked.run(["-c", textwrap.dedent(code)], env=environment, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def start_python() -> RunPython:
    """As ``run_python``, in a process that starts anew: for what is imported, and when."""

    def run(
        code: str, env: dict[str, str | None] | None = None, timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=_environment(env),
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


def _environment(changed: dict[str, str | None] | None) -> dict[str, str]:
    environment = os.environ | (changed or {})
    return {name: value for name, value in environment.items() if value is not None}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        type=parts.read_part,
        default=parts.ALL,
        metavar="K/N",
        help="deal the cases of each test out into N parts, and run those of part K",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = parts.select_part((item.nodeid for item in items), config.getoption("part"))
    others = [item for item in items if item.nodeid not in chosen]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item.nodeid in chosen]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    with _held(item, budget.SET_UP_SECONDS):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    with _held(item, budget.TEST_SECONDS):
        return (yield)


def _held(item: pytest.Item, seconds: float) -> AbstractContextManager[None]:
    """In continuous integration, what `make test` runs keeps to its CPU time."""
    is_apart = item.get_closest_marker("slow") is not None or "parity" in item.path.parts
    is_free = is_apart or not CONTINUOUS_INTEGRATION
    return nullcontext() if is_free else budget.held(seconds)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _not_skipped_silently((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _not_skipped_silently((yield))


def _not_skipped_silently(report: Report) -> Report:
    """In continuous integration what is missing there is a failure; elsewhere it is a message."""
    if CONTINUOUS_INTEGRATION and report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"skipped where CI=true, which counts as a failure: {report.longrepr}"
    return report
