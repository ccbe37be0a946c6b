"""`neuronjax nki`: kernels of files."""

from __future__ import annotations

import json
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
        ("bench", "µs, including"),
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
        ("kernels.py", "128x64", "does not name a kernel; write FILE:KERNEL"),
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


def test_a_shape_that_is_none(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nki", "check", f"{file}:doubled", "--shapes=128by64"])
    assert "is not a shape such as" in capsys.readouterr().err
