"""`neuronjax nki`: kernels of files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from neuronjax.cli.main import EXIT_ERROR, main

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nl.store(out, tile)
    return out
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(KERNEL)
    return path


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("check", "trainium2 accepts it"),
        ("bench", "on device"),
        ("print", "tensor_scalar"),
    ],
)
def test_actions(action: str, words: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nki", action, f"{file}:doubled", "--shapes=128x64:bfloat16"]) == 0
    assert words in capsys.readouterr().out


def test_trips_that_nobody_knows_are_assumed(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = "    for _ in nl.dynamic_range(nisa.register_alloc(x[0:1, 0:1])):\n    "
    file.write_text(KERNEL.replace("    nisa.tensor_scalar", f"{loop}    nisa.tensor_scalar"))
    assert main(["nki", "bench", f"{file}:doubled", "--shapes=128x64:int32"]) == 0
    assert "\nassumed: loop0_line11: 1 trips\n" in capsys.readouterr().out


def test_profile_names_the_lines(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "report"
    assert main(["nki", "profile", f"{file}:doubled", "--shapes=128x64", f"--to={to}"]) == 0
    assert "doubled" in capsys.readouterr().out
    lines = json.loads((to / "profile.json").read_text())["programs"][0]["kernels"][0]["parts"]
    sources = [source for source, *_ in lines]
    assert f"{file}:{1 + KERNEL.splitlines().index('    tile = nl.load(x)')}" in sources
    assert (to / "report.html").stat().st_size > 10_000


def test_run_computes_values(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nki", "run", f"{file}:doubled", "--shapes=128x64:bfloat16"]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    x = np.random.default_rng(0).standard_normal((128, 64), np.float32).astype(ml_dtypes.bfloat16)
    expected = 2 * x.astype(np.float64)
    assert "bfloat16[128," in row
    numbers = [f"{value:.4g}" for value in (expected.min(), expected.mean(), expected.max())]
    assert row[-5:] == [*numbers, "0", "no"]


@pytest.mark.parametrize(
    ("place", "shapes", "words"),
    [
        ("kernels.py:doubled", "256x64", r"allowed: 128 partitions"),
        ("kernels.py:doubled", "128x64,3x3", "doubled(x): too many positional"),
        (
            "kernels.py:tripled",
            "128x64",
            "no kernel 'tripled'; its functions marked with nki.jit: doubled",
        ),
        ("kernels.py:doubeld", "128x64", "Did you mean doubled?"),
        ("kernels.py:doubled[3]", "128x64", "asks for 3 programs"),
        ("kernels.py", "128x64", "No such file"),
        ("none.py:doubled", "128x64", "No such file"),
    ],
)
def test_errors_are_one_line(
    place: str, shapes: str, words: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"{file.parent}/{place}" if ":" in place else place
    assert main(["nki", "check", target, f"--shapes={shapes}"]) == EXIT_ERROR
    written = capsys.readouterr()
    assert words in written.err
    assert "Traceback" not in written.err


SCALED = """
@nki.jit
def scaled(x, scale, dtype="float32", *, name=None):
    assert scale > 0, "a scale above 0"
    rows = x.shape[0] // nl.num_programs()
    own = nl.ds(nl.program_id() * rows, rows)
    out = nl.ndarray(x.shape, dtype=dtype, buffer=nl.shared_hbm)
    tile = nl.load(x[own])
    nisa.tensor_scalar(tile, tile, nl.multiply, scale)
    nl.store(out[own], tile)
    return out
"""


@pytest.mark.parametrize("action", ["check", "run", "bench", "print"])
def test_arguments_that_are_no_arrays_and_two_programs(
    action: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(KERNEL + SCALED)
    place = f"{file}:scaled[2]"
    given = ["--shapes=128x64", "--set", "scale=3.0", "--set", "dtype=bfloat16", "--set=name=a b"]
    assert main(["nki", action, place, *given]) == 0
    written = capsys.readouterr().out
    if action == "run":
        x = np.random.default_rng(0).standard_normal((128, 64), np.float32)
        assert "bfloat16[128, 64]" in written
        assert f"{3 * x.max():.2f}"[:4] in written


BROKEN: dict[str, tuple[str, str]] = {
    "syntax": ("def k(:\n", r"kernels.py:1: SyntaxError"),
    "import": ("import nomodule\n", r"kernels.py:1: ModuleNotFoundError: .*nomodule"),
    "assertion": (KERNEL + SCALED, r"kernels.py:17: AssertionError: a scale above 0"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_errors_of_the_file_are_one_line(
    case: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = BROKEN[case]
    file.write_text(text)
    arguments = ["nki", "check", f"{file}:scaled", "--shapes=128x64", "--set", "scale=-1"]
    assert main(arguments) == EXIT_ERROR
    written = capsys.readouterr().err
    assert re.search(words, written)
    assert "Traceback" not in written


def test_a_value_without_a_name(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nki", "check", f"{file}:doubled", "--shapes=128x64", "--set", "3"])
    assert "'3' is not an argument such as scale=2.0" in capsys.readouterr().err


def test_a_shape_that_is_none(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nki", "check", f"{file}:doubled", "--shapes=128by64"])
    assert "is not a shape such as" in capsys.readouterr().err


ROUNDS = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def powers(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    for _ in nl.sequential_range(4):
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)  # DOUBLE
    nl.store(out, tile)
    return out
"""


@pytest.fixture
def record(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """That of a run which doubles its argument four times."""
    file.write_text(ROUNDS)
    target = tmp_path / "powers.npz"
    command = ["nki", "run", f"{file}:powers", "--shapes=128x4", f"--record_to={target}"]
    assert main(command) == 0
    capsys.readouterr()
    return target


DOUBLE = next(n for n, line in enumerate(ROUNDS.splitlines(), 1) if "# DOUBLE" in line)


@pytest.mark.parametrize("visit", [1, 3])
def test_a_kernel_stops_at_a_line(
    visit: int, record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(record), "--list"]) == 0
    (tile,) = (line.split()[0] for line in capsys.readouterr().out.splitlines() if "sbuf" in line)
    at = ["--at", f"kernels.py:{DOUBLE}", f"--visit={visit}"]
    assert main(["replay", str(record), *at, "--print", "argument0", "--print", tile]) == 0
    out = capsys.readouterr().out
    shown = (part.split("\n", 1)[1] for part in out.split("\n%")[1:])
    given, held = (np.array(re.findall(r"-?\d+\.\d*(?:e[-+]\d+)?", part), float) for part in shown)
    np.testing.assert_allclose(held, given * 2 ** (visit - 1), rtol=1e-6)
    assert f"kernels.py:{DOUBLE}" in out or visit == 1


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ([f"kernels.py:{DOUBLE}", "--visit=5"], "4 times, not 5"),
        (["kernels.py:2"], f"kernels.py:{DOUBLE}"),
        (["other.py:3"], "no instruction of other.py:3"),
    ],
)
def test_lines_that_are_not_reached(
    at: list[str], words: str, record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(record), "--at", *at]) == EXIT_ERROR
    assert words in capsys.readouterr().err
