"""Jobs of several processes, started by ``neuronjax launch``: they compute what one does."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest

from neuronjax.cli.main import main
from neuronjax.profiling import mesh_traffic, store
from tests.conftest import PROJECT
from tests.odd_programs import PROGRAMS, shards
from tests.processes import job

LAUNCH = [sys.executable, "-m", "neuronjax.cli", "launch"]


def launch(
    *arguments: str, env: dict[str, str], timeout: float = 180
) -> subprocess.CompletedProcess[str]:
    """Runs ``neuronjax launch`` on the machine of the tests."""
    return subprocess.run(
        [*LAUNCH, *arguments],
        env=env,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports that nobody uses."""
    for first in range(20_000, 30_000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def alone(neuron_devices: list[jax.Device]) -> dict[str, str]:
    """What one process computes on eight devices."""
    return {name: task(neuron_devices) for name, task in job.TASKS.items()}


@pytest.mark.slow
def test_every_process_records_its_profile(tmp_path: Path, environment: dict[str, str]) -> None:
    """Programs with and without arguments, over the cores of two machines, with collectives."""
    environment |= {"NEURON_LOGICAL_NC_CONFIG": "2", "NEURONJAX_PROFILE_TO": str(tmp_path)}
    done = launch("--hosts=2", "-m", "tests.processes.profiled", env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for index in range(2):
        found = store.read(tmp_path / f"process-{index}")
        assert [(each.error, each.cores) for each in found.programs] == [("", tuple(range(8)))] * 2
        assert [run.cores for run in found.runs] == [tuple(range(4 * index, 4 * index + 4))] * 2
        assert found.programs[1].collectives
        drawn = mesh_traffic.described(found.programs[1], found.machine)
        assert drawn is not None
        assert len(drawn["svgs"]) == 2


OFTEN = (
    "no arguments", "a part of the mesh", "int4", "layers", "axis_index in a loop in a loop",
    "psum in a branch", "pipeline",
)  # fmt: skip
"""Odd programs that every test run tries."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "tasks"),
    [
        (2, list(job.TASKS)),
        pytest.param(2, list(OFTEN), id="2-often"),
        pytest.param(2, list(PROGRAMS), marks=pytest.mark.slow, id="2-odd"),
        pytest.param(4, ["training", *PROGRAMS], marks=pytest.mark.slow, id="4-odd"),
    ],
)
def test_processes_compute_what_one_does(
    count: int,
    tasks: list[str],
    alone: dict[str, str],
    neuron_devices: list[jax.Device],
    tmp_path: Path,
    environment: dict[str, str],
) -> None:
    cores = 8 // count
    job.save(tmp_path / "before", neuron_devices)
    environment |= {
        "NEURON_RT_NUM_CORES": str(cores),
        "NEURONJAX_MONITOR_PORT": str(free_ports(count)),
        "TF_CPP_MIN_LOG_LEVEL": "2",  # XLA's partitioner warns of how it splits a program
    }
    arguments = (f"--hosts={count}", "-m", "tests.processes.job", str(tmp_path), *tasks)
    done = launch(*arguments, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    facts = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(count)]
    of_processes = [of_process.pop("shards") for of_process in facts]
    for task in tasks:
        if task in PROGRAMS:
            found = {
                place: value for of_one in of_processes for place, value in of_one[task].items()
            }
            assert found == shards(PROGRAMS[task], neuron_devices), task
    for index, of_process in enumerate(facts):
        assert of_process == expected(index, count, cores) | {
            "results": {task: alone[task] for task in tasks if task in alone},
            "restored": True,
        }
    assert job.restored(tmp_path / "after", neuron_devices)


def expected(index: int, count: int, cores: int) -> dict[str, Any]:
    """What JAX's functions for several processes say in one of them."""
    local = range(index * cores, (index + 1) * cores)
    return {
        "devices": [
            [
                device,
                device // cores,
                device - local[0] if device in local else None,
                device // cores * 8 + device % cores,
            ]
            for device in range(8)
        ],
        "local": list(local),
        "sum": float(sum(100 * p + i for p in range(count) for i in range(cores))),
        "broadcast": 7.0,
        "gathered": list(range(count)),
        "on the last": [12.0 * cores] * cores if index == count - 1 else [],
        "bytes": [True] * cores,
    }


DYING = """\
import os, signal, sys, time
import jax
from jax.experimental import multihost_utils

jax.distributed.initialize()
multihost_utils.sync_global_devices("begin")
if jax.process_index() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(float(sys.argv[1]))
try:
    multihost_utils.sync_global_devices("end")
except (jax.errors.JaxRuntimeError, ValueError) as error:  # jaxlib's, when dispatch itself fails
    sys.exit(str(error).splitlines()[0])
"""


@pytest.mark.parametrize("seconds", [0, 1], ids=["seen while waiting", "seen before sending"])
def test_a_process_that_dies_is_named(
    seconds: float, tmp_path: Path, environment: dict[str, str]
) -> None:
    script, logs = tmp_path / "dying.py", tmp_path / "logs"
    script.write_text(DYING)
    done = launch("--hosts=2", f"--logs={logs}", str(script), str(seconds), env=environment)
    assert done.returncode == 1
    assert done.stderr == (
        "neuronjax launch: process 1 was killed by SIGKILL; the others were stopped. "
        f"Its log: {logs / 'process-1.log'}.\n"
    )
    assert "[0] UNAVAILABLE: process 1 has died. The job cannot go on" in done.stdout
    assert "UNAVAILABLE: process 1 has died" in (logs / "process-0.log").read_text()


HALTED = """\
import os, signal, time
import jax
from jax.experimental import multihost_utils

jax.distributed.initialize()
multihost_utils.sync_global_devices("begin")
if jax.process_index() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    multihost_utils.sync_global_devices("end")
finally:
    print(f"failed at {time.monotonic()}", flush=True)
"""


@pytest.mark.slow
def test_a_process_that_is_halted_is_named_and_ended(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    script = tmp_path / "halted.py"
    script.write_text(HALTED)
    given = {**environment, "NEURONJAX_PEER_TIMEOUT": "5"}
    done = launch("--hosts=2", str(script), env=given)
    ended = time.monotonic()
    assert done.returncode == 1
    assert "process 1 was halted by SIGSTOP or SIGTSTP; the others were stopped" in done.stderr
    (failed,) = re.findall(r"failed at ([\d.]+)", done.stdout)
    assert ended - float(failed) < 10


FAULTY = """\
import sys
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("d",))
is_faulty = jax.process_index() == 1
width = 8 if is_faulty and sys.argv[1] == "shapes" else 4
ones = jnp.ones((jax.device_count(), width))
x = jax.make_array_from_callback(ones.shape, NamedSharding(mesh, P("d")), ones.__getitem__)
for step in range(3):
    if is_faulty and step and sys.argv[1] == "exception":
        raise ValueError("shard 17 is missing")
    jax.jit(jnp.sum)(x).block_until_ready()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "told", "fate"),
    [
        (
            "exception",
            dict.fromkeys((0, 2), r"process 1 has ended \(ValueError: shard 17 is missing\)"),
            "process 1 ended with ValueError: shard 17 is missing",
        ),
        (
            "shapes",
            dict.fromkeys((0, 1, 2), "process . waits for .* must run the same programs"),
            "process . ended with status 1",
        ),
    ],
)
def test_the_first_process_to_fail_is_named(
    fault: str, told: dict[int, str], fate: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    script = tmp_path / "faulty.py"
    script.write_text(FAULTY)
    done = launch("--hosts=3", str(script), fault, env=environment)
    assert done.returncode == 1
    assert re.search(f"^neuronjax launch: {fate}; the others were stopped", done.stderr, re.M)
    for process, text in told.items():
        assert re.search(rf"^\[{process}\] .*{text}", done.stdout, re.M), process


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts=5", "--target=trn2-ultraserver"], "5 processes cannot share the 4 hosts of"),
        (["--hosts=2", "--target=trn2.big"], "Target 'trn2.big' is not a known"),
        (["--hosts=2", "--port=PORT"], "--port=[0-9]+ cannot be used on 127.0.0.1: Address"),
    ],
    ids=["hosts", "target", "port"],
)
def test_what_cannot_be_launched(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    taken_port: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('started')")
    given = [word.replace("PORT", str(taken_port)) for word in arguments]
    assert main(["launch", *given, str(script)]) == 2
    output = capfd.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert re.match(f"neuronjax: {message}", line)
