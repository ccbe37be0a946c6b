"""``neuronjax lower`` in processes of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from neuronjax.dump import SUFFIXES
from neuronjax.lower.passes import PASSES
from neuronjax.program import text
from neuronjax.program.verify import verify
from tests import forked

SCRIPT = """\
import sys
import jax
import jax.numpy as jnp

@jax.jit
def attend(x, w):
    return jax.nn.softmax(x @ w)                                    # line 7

@jax.jit
def double(x):
    return x * 2

print("results", attend(double(jnp.ones((8, 16))), jnp.ones((16, 8)))[0, 0])
if "raise" in sys.argv:
    raise ValueError("no")
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(SCRIPT)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "NEURON"))}
    command = ["-m", "neuronjax.cli", "lower", *arguments]
    return forked.run(command, env=environment, cwd=folder, timeout=300)


def test_prints_programs_that_parse_and_are_legal(tmp_path: Path) -> None:
    done = run(tmp_path, "--program=jit_attend", "job.py")
    assert done.returncode == 0, done.stderr
    assert "results 0.0" in done.stderr  # not executed
    head, _, body = done.stdout.partition("\n")
    assert head == "// jit_attend, after lower"
    program = text.parse(body)
    assert verify(program) == ()
    assert "nc_matmul" in body
    assert f'sources ("{tmp_path / "job.py"}:7")' in body


@pytest.mark.parametrize(
    ("stage", "found"), [("partition", "stablehlo.dot_general"), ("legalize", "stablehlo.dot")]
)
def test_earlier_stages_are_stablehlo(tmp_path: Path, stage: str, found: str) -> None:
    done = run(tmp_path, f"--stop_after={stage}", "--program=jit_attend", "job.py")
    assert done.returncode == 0, done.stderr
    assert found in done.stdout
    assert "jit_double" not in done.stdout


def test_stops_after_any_pass(tmp_path: Path) -> None:
    listed = run(tmp_path, "--stop_after=help")
    assert listed.returncode == 0, listed.stderr
    assert all(f"{each.name} " in listed.stdout for each in PASSES)
    done = run(tmp_path, "--stop_after=native", "--program=jit_attend", "job.py")
    assert "dot_general(" in done.stdout, done.stderr
    assert f"// {tmp_path / 'job.py'}:7" in done.stdout
    done = run(tmp_path, "--stop_after=join", "--program=jit_attend", "job.py")
    program = text.parse(done.stdout.partition("\n")[2])
    assert {buffer.address for buffer in program.buffers} == {None}


def test_all_stages_of_all_programs_are_kept(tmp_path: Path) -> None:
    done = run(tmp_path, "--out=stages", "job.py")
    assert done.returncode == 0, done.stderr
    kept = {path.name.split(".", 1)[1] for path in (tmp_path / "stages").iterdir()}
    wanted = {f"{n}.{s}.{e}" for n in ("jit_attend", "jit_double") for s, e in SUFFIXES.items()}
    assert wanted <= kept


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("--program=nobody", "job.py"),
            1,
            "no program matches --program=nobody; the script compiled ",
        ),
        (("job.py", "raise"), 2, "ValueError: no"),
        (("missing.py",), 2, "there is no script 'missing.py'"),
        (("--target=trn9", "job.py"), 2, "trn9"),
        (
            ("--stop_after=joined", "job.py"),
            2,
            "'joined' is not one of partition, legalize, lower,",
        ),
        (("--out=job.py/x", "job.py"), 2, "cannot be written to"),
    ],
)
def test_what_went_wrong(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == code
    assert message in done.stderr
