"""`neuronjax nki bench` and `compare` over kernels that nobody has read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neuronjax.cli.main import EXIT_ERROR, main

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    {}
    for part in nl.affine_range(x.shape[0] // 128):
        rows = nl.ds(part * 128, 128)
        tile = nl.load(x[rows])
        nisa.tensor_scalar(tile, tile, nl.multiply, {})
        nl.store(out[rows], tile)
    return out
"""

EARLIER = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for part in nl.affine_range(x.shape[0] // 128):
        rows, columns = part * 128 + nl.arange(128)[:, None], nl.arange(x.shape[1])[None, :]
        nl.store(out[rows, columns], nl.load(x[rows, columns]) * 2.0)
    return out
"""

TASK = """
import numpy as np

def inputs():
    return [np.random.default_rng(0).standard_normal((256, 64), np.float32)]

def reference(x):
    return 2 * x
"""


def in_kernel(statement: str, factor: str = "2.0") -> str:
    """The kernel with another statement in it."""
    return KERNEL.format(statement, factor)


FORGED = """
    import os
    for fd in range(3, 99):
        try:
            os.write(fd, b'{"status": "ok"}')
        except OSError:
            pass
    os._exit(0)
"""
"""Writes an evaluation of its own to the pipe through which a process hands on its program."""

CANDIDATES: Mapping[str, tuple[str, str, str]] = {
    "present": (in_kernel("pass"), "ok", ""),
    "earlier": (EARLIER, "ok", ""),
    "own_file": (in_kernel("open('mine', 'w').write('x')"), "ok", ""),
    "wrong": (in_kernel("pass", "2.5"), "wrong", "elements are beyond"),
    "raises": (in_kernel("raise ValueError('its own')"), "failed", "py:10: ValueError: its own"),
    "syntax": ("def doubled(:\n", "failed", "syntax.py:1: SyntaxError"),
    "loops": (in_kernel("while True: pass"), "ended", "loops.py:7: it computes for more than 2 s"),
    "memory": (in_kernel("bytearray(1 << 40)"), "ended", "more than 1024 MiB of memory"),
    "prints": (in_kernel("while True: print('x' * 1000)"), "ended", "more than 100 KiB of output"),
    "dials": (in_kernel("__import__('socket').socket()"), "ended", "py:7: it opens a socket"),
    "writes": (in_kernel("open(__file__ + '.out', 'w')"), "ended", "writes outside its folder"),
    "starts": (in_kernel("__import__('os').system('true')"), "ended", "starts another program"),
    "peeks": (in_kernel("import task"), "ended", "it reads the task that it is judged by"),
    "kills": (in_kernel("__import__('os').kill(1, 0)"), "ended", "it sends a signal"),
    "forges": (in_kernel(FORGED), "ended", "it hands on no program"),
    "leaves": (in_kernel("__import__('os')._exit(0)"), "ended", "before it was done"),
}
"""Name -> its file, what it comes to, and words of why."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a task and candidates."""
    (tmp_path / "task.py").write_text(TASK)
    for name, (code, _, _) in CANDIDATES.items():
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


def bench(folder: Path, names: list[str], capsys: pytest.CaptureFixture[str], *more: str) -> str:
    files = [str(folder / f"{name}.py") for name in names]
    assert main(["nki", "bench", *files, f"--task={folder / 'task.py'}", *more]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_candidates_are_named_for_what_they_do(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ("--seconds=2", "--memory=1024", "--output=100", "--processes=2")
    document = json.loads(bench(folder, list(CANDIDATES), capsys, *limits, "--json"))
    assert len(document["best"]) == 3
    rows = dict(zip(CANDIDATES, document["evaluations"], strict=True))
    for name, (_, status, words) in CANDIDATES.items():
        assert rows[name]["status"] == status, rows[name]
        assert words in rows[name]["reason"]
        assert rows[name]["kernel"] == str(folder / f"{name}.py")
    # The compiler of the earlier dialect had Scalar multiply.
    assert rows["present"]["instructions"] == {"dma_copy": 4, "tensor_scalar": 2}
    assert rows["earlier"]["instructions"] == {"activation": 2, "dma_copy": 4}
    assert not list(folder.glob("*.out"))


@pytest.mark.slow
def test_the_same_json_twice_and_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["wrong", "present", "earlier"]
    first = bench(folder, names, capsys, "--json")
    assert first == bench(folder, names, capsys, "--json", "--processes=2")
    table = bench(folder, names, capsys)
    assert "3 candidates on a core of trainium2: 2 ok, 1 wrong" in table
    assert table.index("present.py") < table.index("wrong.py")


def test_two_kernels_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = in_kernel("pass").replace(
        "        nl.store", "        nisa.tensor_copy(tile, tile)\n        nl.store"
    )
    (folder / "twice.py").write_text(twice)
    places = [str(folder / "present.py"), str(folder / "twice.py:doubled")]
    assert main(["nki", "compare", *places, "--shapes=256x64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["tensor_copy", "0", "2", "new"] in [line.split() for line in lines]
    assert any(line.split()[:1] == ["device"] and "+" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "present.py", "--shapes=256x64"], "compare takes two kernels, and got 1"),
        (["check", "present.py", "--json", "--shapes=1x1"], "check takes no --json"),
        (["bench", "present.py"], "give the arguments' shapes (--shapes=128x64), or a --task"),
        (["bench", "present.py", "--task=task.py", "--shapes=1x1"], "leave out --shapes"),
        (["bench", "present.py", "--task=present.py"], "has no function inputs"),
        (["bench", "present.py", "--task=none.py"], "No such file"),
        (["bench", "present.py", "--task=failing.py"], "failing.py:8: RuntimeError"),
        (["bench", "two.py", "--shapes=256x64"], "two.py has 2 kernels; write FILE:KERNEL"),
    ],
)
def test_mistakes(
    arguments: list[str],
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing = TASK.replace("return 2 * x", "raise RuntimeError('the reference')")
    (folder / "failing.py").write_text(failing)
    both = in_kernel("pass")
    (folder / "two.py").write_text(both + both.replace("doubled", "again").partition("nl\n")[2])
    monkeypatch.chdir(folder)
    assert main(["nki", *arguments]) == EXIT_ERROR
    assert words in capsys.readouterr().err


class _Ray:
    """Ray as far as it is used, with everything on this machine."""

    def init(self, **options: object) -> None: ...

    def shutdown(self) -> None: ...

    def put(self, value: object) -> object:
        return value

    def get(self, value: object) -> object:
        return value

    def wait(self, pending: list[object]) -> tuple[list[object], list[object]]:
        return pending[-1:], pending[:-1]

    def remote(self, **options: object) -> Any:
        return lambda function: SimpleNamespace(remote=lambda *given: _Answer(function(*given)))


class _Answer:
    def __init__(self, value: Any) -> None:
        self.evaluations, self.target, self.limits = value.evaluations, value.target, value.limits


def test_candidates_run_on_ray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for number, factor in enumerate(("2.0", "3.0")):
        files.append(tmp_path / f"candidate{number}.py")
        files[-1].write_text(in_kernel("", factor))
    task = tmp_path / "task.py"
    task.write_text(TASK)
    given = ["nki", "bench", *map(str, files), f"--task={task}", "--json"]
    assert main(given) == 0
    here = capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "ray", _Ray())
    assert main([*given, "--ray=local"]) == 0
    assert capsys.readouterr().out == here
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*given, "--ray=local"]) == EXIT_ERROR
    assert "--ray needs Ray: pip install ray" in capsys.readouterr().err
