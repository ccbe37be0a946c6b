"""What people get to read: one line that says what was given, what is allowed, and what helps."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import neuronjax
from neuronjax import options
from neuronjax.cli.main import EXIT_ERROR, main
from neuronjax.emulate.record import Replay
from neuronjax.errors import ConfigurationError, NeuronError, RecordError
from neuronjax.machine.machine import Machine
from neuronjax.planning import what_if
from neuronjax.runtime.device import visible_cores
from tests.parsers.parsers import environment, recorded


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"NEURON_RT_VISIBLE_CORES": "0-20000"},
            "NEURON_RT_VISIBLE_CORES asks for core 4, but trn2.3xlarge (LNC 2) has logical cores "
            "0-3. List only these, or choose a larger machine with NEURONJAX_TARGET.",
        ),
        (
            {"NEURON_RT_VISIBLE_CORES": "0-200000000"},
            "NEURON_RT_VISIBLE_CORES='0-200000000' names core 200000000; no machine has more than "
            "65536.",
        ),
        (
            {"NEURONJAX_MONITOR_PORT": "9" * 5000},
            f"NEURONJAX_MONITOR_PORT='{'9' * 79} … {'9' * 19}' is not allowed; it must be a port "
            "from 1 to 65535.",
        ),
    ],
    ids=["range", "long range", "long number"],
)
def test_variables(variables: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(NeuronError) as caught:
        environment(variables, tmp_path)
    assert str(caught.value) == message


def test_a_long_list_of_cores_is_read() -> None:
    chosen = options.load({"NEURON_RT_VISIBLE_CORES": "0-255"})
    machine = Machine.create("trn2-ultraserver")
    assert len(visible_cores(machine, chosen, machine.logical_cores)) == machine.core_count == 256


def with_part(folder: Path, name: str, text: str) -> Path:
    """A record with another part."""
    path = folder / "run.npz"
    np.savez(path, **{**recorded(), name: np.frombuffer(text.encode(), np.uint8)})
    return path


def with_program(folder: Path, old: str, new: str) -> Path:
    text = recorded()["program"].tobytes().decode()
    assert old in text
    return with_part(folder, "program", text.replace(old, new, 1))


def with_bytes(folder: Path, content: bytes) -> Path:
    path = folder / "run.npz"
    path.write_bytes(content)
    return path


ENTRY = {"version": 1, "order": {"kind": "program"}, "rounding": {}, "digest": None, "answers": []}
RECORDS = {
    "empty": (lambda folder: with_bytes(folder, b""), "it is not an archive"),
    "text": (lambda folder: with_bytes(folder, b"program"), "it is not an archive"),
    "half": (
        lambda folder: with_bytes(folder, with_part(folder, "x", "y").read_bytes()[:-200]),
        "is truncated",
    ),
    "missing": (lambda folder: folder / "none.npz", "No such file"),
    "address": (lambda folder: with_program(folder, "@0", f"@{1 << 50}"), "hbm; allowed: "),
    "chip": (lambda folder: with_program(folder, "trainium2", "tpu7"), "allowed: inferentia1"),
    "LNC": (lambda folder: with_program(folder, "lnc 1", "lnc 7"), "LNC 7 on trainium2"),
    "seed": (
        lambda folder: with_part(folder, "entry", json.dumps(ENTRY | {"rounding": {"seed": "x"}})),
        "seed is 'x'",
    ),
    "mode": (
        lambda folder: with_part(folder, "entry", json.dumps(ENTRY | {"rounding": {"mode": "x"}})),
        "mode is 'x', not one of nearest, stochastic",
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = RECORDS[name]
    assert main(["replay", str(make(tmp_path))]) == EXIT_ERROR
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.count("\n") == 1
    assert words in written.err


MACHINES: dict[str, tuple[Any, str]] = {
    "NaN": ({"chip": {"hbm": {"bandwidth": float("nan")}}}, "=nan: it must be finite and greater"),
    "zero": ({"chip": {"hbm": {"stacks": 0}}}, "machine.chip.hbm.stacks=0: it must be finite and"),
    "negative": ({"calibration": {"wake_ns": -1}}, "calibration.wake_ns=-1: it must be finite and"),
    "fraction": ({"chip": {"cores": 1.5}}, "machine.chip.cores=1.5: it must be a whole number"),
    "flag": ({"chip": {"cores": True}}, "machine.chip.cores is 8; True cannot replace it"),
    "list": ({"chip": [1]}, r"machine.chip is a table; [1] cannot replace it"),
    "name": ({"chip": {"name": "x"}}, "machine.chip.name cannot be changed"),
    "size": (
        {"topology": {"axes": {"row": {"size": 1 << 30}}}},
        "cores, but at most 65536 are supported",
    ),
    "kind": ([], "[] is neither a TOML file nor a mapping"),
}


@pytest.mark.parametrize("name", MACHINES)
def test_machines(name: str) -> None:
    given, words = MACHINES[name]
    with pytest.raises(ConfigurationError) as caught:
        what_if.machine_of("trn2.48xlarge", None, given)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"), [(b"\xff", "can't decode byte 0xff"), (b"a=" + b"[" * 9999, "too deep")]
)
def test_machine_files(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "machine.toml").write_bytes(data)
    with pytest.raises(ConfigurationError, match=words):
        what_if.machine_of("trn2.48xlarge", None, tmp_path / "machine.toml")


COMMANDS = {
    "nccom -r 8 -b 1 -e 1GB -i 1 allr": "more than 1000 rows",
    "nccom -r 8 -f nan allr": "'nan' is not a number greater than 0",
    "nccom -r 99999999999 allr": "is not a whole number from 1 to 1048576",
    "monitor --port 99999": "'99999' is not a whole number from 1 to 65535",
    "monitor --port 1 --period nan": "'nan' is not a number of seconds",
    "lint --timeout nan x.py": "'nan' is not a number of seconds",
    "validate --only (": "'(' is not a regular expression",
    "ls --lnc 0": "'0' is not a whole number",
    "nccom -r 8 allr --report-to-json-file /nowhere/at/all": "/nowhere/at/all: No such file",
}


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(line: str) -> None:
    told = io.StringIO()
    with redirect_stderr(told), redirect_stdout(io.StringIO()):
        try:
            code = main(line.split())
        except SystemExit as end:
            code = end.code
    assert code == EXIT_ERROR
    assert COMMANDS[line] in told.getvalue()


def test_mesh_of_a_text(neuron_devices: list[jax.Device]) -> None:
    mesh = neuronjax.make_mesh("data=2,model=4")
    assert mesh == neuronjax.make_mesh({"data": 2, "model": 4})
    for wrong in ("data", "data=4=4", "", [("data", 4)], None, {"data": "4"}, {"": 1}):
        with pytest.raises(NeuronError, match=r"axis|malformed"):
            neuronjax.make_mesh(wrong)


def test_an_instruction_that_cannot_be(tmp_path: Path) -> None:
    """The program breaks a rule of the hardware, and the emulator stumbles over it."""
    path = with_program(tmp_path, "1:64", "1:63")
    with pytest.raises(RecordError, match=r"cannot be replayed: .*allowed"):
        Replay.load(path).run()
