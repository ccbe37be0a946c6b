"""Every parser of the project with what it gets: whatever somebody outside writes."""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import tomllib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import strategies as st

from neuronjax import options
from neuronjax.cli.main import main
from neuronjax.emulate.record import Replay, record
from neuronjax.machine.machine import Machine
from neuronjax.machine.placement import arrange_cores
from neuronjax.planning import what_if
from neuronjax.planning.measure import Setting, time_of
from neuronjax.planning.prices import read_prices
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.profiling import store
from neuronjax.program.text import parse
from neuronjax.program.verify import verify
from neuronjax.runtime import executable
from neuronjax.runtime.device import visible_cores
from neuronjax.runtime.event import Event
from neuronjax.runtime.memory import HbmLedger
from neuronjax.runtime.monitor import Monitor
from neuronjax.runtime.monitor_server import answered
from neuronjax.timing.network import Op, collective_time
from tests.emulate.programs import CASES, golden
from tests.parsers.inputs import altered, contents, damaged, scalars, texts, values
from tests.program.test_golden import GOLDEN


@dataclass(frozen=True)
class Parser:
    """`read` takes an input, and a folder that it may write to."""

    inputs: st.SearchStrategy[Any]
    read: Callable[[Any, Path], Any]


def in_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes, Path], Any]:
    """A parser of files as one of their bytes."""

    def write_and_read(data: bytes, folder: Path) -> Any:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return write_and_read


# Options: the environment, and what Python gives

VALUES = {
    "NEURONJAX_TARGET": "trn2.48xlarge",
    "NEURON_RT_VISIBLE_CORES": "0-3,5",
    "NEURON_CC_FLAGS": "--auto-cast=all --model-type 'unet inference' -O1 --lnc=1",
    "NEURONJAX_SDK": "2.31",
    "NEURONJAX_MONITOR_PORT": "8000",
    "NEURON_RT_NUM_CORES": "2",
    "NEURONJAX_FAULTS": "core_dies core=3 step=10 program=jit_*; slow_link axis=row factor=1.5",
}
NAMES = st.sampled_from([*options.VARIABLES, "NEURONJAX_NOTHING", "NEURON_RT_LOG_LEVEL"])
FIELDS = st.sampled_from([*options.Options.__dataclass_fields__, "nothing"])


def environment(variables: dict[str, str], _: Path) -> None:
    chosen = options.load(variables)
    machine = Machine.create(chosen.target, chosen.lnc)
    visible_cores(machine, chosen, machine.logical_cores)


def one_variable(name: str, *samples: str) -> Parser:
    inputs = texts(VALUES[name], *samples).map(lambda text: {name: text})
    return Parser(inputs, environment)


# Machines

WHAT_IF = """
base = "trn2.48xlarge"
lnc = 1
[chip]
cores = 16
[chip.hbm]
capacity_bytes = "192 GiB"
bandwidth = "x2"
[topology.axes.row]
link_bandwidth = "x2"
size = 8
[topology.axes.column]
link_bandwidth = 512e9
wiring = "line"
[chip.core.sbuf]
partition_bytes = 262144
[chip.core.dma]
engine_bandwidth = 20e9
[chip.core.tensor.rates]
bfloat16 = 2
[chip.core.engines.vector]
clock_hz = "1.92 GHz"
[calibration]
collective_base_ns = 100
mesh_share = 0.5
[calibration.prologue_ns]
3 = 0
"""
PRICES = '["trn1.32xlarge"]\nusd_per_hour = 21.5\ndate = "2026-08-01"\nsource = "a page"\n'


def changed_machine(given: Any, _: Path | None = None) -> None:
    """A machine that is accepted has times."""
    changed, calibration = what_if.machine_of("trn2.48xlarge", None, given)
    found = collective_time(
        Op.ALL_REDUCE, 1 << 20, min(8, changed.core_count), changed, calibration=calibration
    )
    times = [found.total_ns]
    if changed.chip.name == "trainium2":
        setting = Setting(machine=changed, calibration=calibration)
        times.append(time_of(golden("rms_norm"), setting).total_ns)
    assert all(0 < each < math.inf for each in times), times


def mesh(axes: Any, _: Path) -> None:
    abstract_mesh(axes)
    arrange_cores(Machine.create(), axes)


# Programs and their runs


def program(text: str, _: Path) -> None:
    verify(parse(text))


@cache
def recorded() -> dict[str, np.ndarray]:
    """The arrays of a right record."""
    arguments = CASES["control"].arguments(np.random.default_rng(1))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        record(path, golden("control"), arguments, host=lambda _, sources: sources)
        with np.load(path) as archive:
            return dict(archive)


def as_bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Archives whose parts are damaged: the entry, the program, or the arrays."""
    arrays = dict(recorded())
    name = draw(st.sampled_from([*arrays, "entry", "entry", "program", "program"]))
    if name == "entry":
        changed = json.dumps(draw(altered(json.loads(arrays[name].tobytes()))))
        arrays[name] = as_bytes(changed)
    elif name == "program":
        arrays[name] = as_bytes(draw(damaged([arrays[name].tobytes().decode()])))
    else:
        arrays[name] = np.zeros(draw(st.sampled_from([(), (0,), (3,), (2, 2)])), np.float64)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """A right record with some bytes changed, or cut off."""
    file = io.BytesIO()
    np.savez_compressed(file, **recorded())
    data = bytearray(file.getvalue())
    for place, byte in draw(
        st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)))
    ):
        data[place] = byte
    return bytes(data[: draw(st.none() | st.integers(0, len(data)))])


HEADER = {
    "format": executable._FORMAT, "name": "jit_f", "arguments": [[[4, 2], "float32"]],
    "results": [[[4], "bfloat16"]], "donated": [0], "memory_kinds": [None], "num_replicas": 1,
    "num_partitions": 2, "xla_options": [["xla_cpu", True]], "fingerprint": "abc",
    "takes_run_number": False,
    "checks": {"nan": True, "flagged": False, "places": [{"op": "log", "source": "a.py:1"}]},
}  # fmt: skip


PROFILE = {"format": 2, "machine": {}, "programs": [], "runs": [], "counts": [], "host_ns": 0}


def sealed(header: bytes) -> bytes:
    """A serialized executable with this header and a right checksum."""
    body = b"".join(struct.pack("<Q", len(part)) + part for part in (header, b"a", b"b", b"c"))
    return executable._MAGIC + hashlib.sha256(body).digest() + body


HEADERS = altered(HEADER).map(lambda given: json.dumps(given).encode()) | contents('{"format": 3}')


# The command line

LINES = (
    "ls --topology --target=trn1.32xlarge", "ls --json-output --lnc 1", "--version",
    "nccom -r 32 -b 8 -e 1KB -f 2 -d bf16 allr --target trn1.32xlarge", "nccom -r 8 alltoall",
    "replay /dev/null --to 3 --rank 1 --print x", "monitor --port 1 --period 1 --count 1",
    "top --port 1 --count 1", "estimate nothing:f --mesh=data=4 --set a=1 --depths 2,3",
    "sweep nothing:f --batch 1,2 --price 3", "lint nothing.py --timeout 3", "lower nothing.py",
    "profile --compare nothing nowhere",
)  # fmt: skip


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A right command line with some words damaged, doubled or left out."""
    words = draw(st.sampled_from(LINES)).split()
    at = draw(st.integers(1, len(words)))
    if at == len(words):
        return [*words, draw(texts("--lnc=1"))]
    words[at : at + 1] = draw(st.just([]) | st.lists(texts(words[at]), min_size=1, max_size=2))
    return words


def command(words: list[str], folder: Path) -> None:
    """Complaints about arguments end with code 2, help and versions with 0."""
    if any(word.startswith(("--out", "--report", "--set")) for word in words):
        return
    silent = io.StringIO()
    with redirect_stdout(silent), redirect_stderr(silent), suppress(SystemExit):
        assert main(words) in (0, 1, 2)


REQUESTS = contents("GET /json?period=5 HTTP/1.1\r\nHost: x\r\n\r\n", "GET /metrics HTTP/1.0\r\n")


@cache
def monitor() -> Monitor:
    """That of a machine on which nothing ran."""
    machine = Machine.create()
    ledger = HbmLedger(["core"], [1 << 30], 0)
    return Monitor(machine, ledger, lambda _: Event(), lambda _: machine, [0])


def request(head: bytes, _: Path) -> None:
    assert answered(head, monitor().answer).status.value in (200, 400, 404, 405)


PARSERS: dict[str, Parser] = {
    "environment": Parser(
        st.dictionaries(NAMES, texts(*VALUES.values(), "1"), min_size=1, max_size=3), environment
    ),
    "cores": one_variable("NEURON_RT_VISIBLE_CORES", "0,2,5-6", "0-20000", "0-200000000"),
    "compiler flags": one_variable("NEURON_CC_FLAGS", "--lnc 2", "-O", "--lnc=9"),
    "faults": one_variable("NEURONJAX_FAULTS", "bit_flip memory=sbuf bits=3 detected=1 seed=4"),
    "switches": Parser(
        st.dictionaries(FIELDS, values | st.tuples(values), max_size=3),
        lambda given, _: options.load({}, **given),
    ),
    "mesh": Parser(
        texts("data=4,model=2") | values | st.dictionaries(st.sampled_from("abc"), scalars), mesh
    ),
    "machine files": Parser(contents(WHAT_IF), in_file("machine.toml", changed_machine)),
    "machines": Parser(altered(tomllib.loads(WHAT_IF)), changed_machine),
    "prices": Parser(contents(PRICES), in_file("prices.toml", read_prices)),
    "programs": Parser(texts(*[path.read_text() for path in GOLDEN]), program),
    "records": Parser(records() | archives(), in_file("run.npz", Replay.load)),
    "profiles": Parser(
        contents('{"format": 2}') | altered(PROFILE).map(lambda given: json.dumps(given).encode()),
        in_file("profile.json", store.read),
    ),
    "executables": Parser(
        st.binary(max_size=80) | HEADERS.map(sealed), lambda data, _: executable.deserialize(data)
    ),
    "requests": Parser(REQUESTS, request),
    "command lines": Parser(lines(), command),
}  # fmt: skip
