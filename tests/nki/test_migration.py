"""`neuronjax nki migrate`: kernels of NKI 0.x in the present dialect, with the same values."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from neuronjax.cli.main import main

HEAD = """
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from neuronxcc.nki.language import par_dim


@nki.jit
"""

BLOCKS = """
def kernel(x):
    # Blocks that live for an iteration.
    out = nl.ndarray((256, 64), dtype=np.float32, buffer=nl.shared_hbm)
    tiles = nl.ndarray((2, par_dim(128), 64), dtype=np.float32, buffer=nl.sbuf)
    twice = nl.ndarray((2, par_dim(128), 64), dtype=np.float32, buffer=nl.sbuf)
    for i in nl.affine_range(2):
        tiles[i, nl.arange(128)[:, None], nl.arange(64)[None, :]] = nl.load(
            x[128 * i + nl.arange(128)[:, None], nl.arange(64)[None, :]], dtype=np.float32)
        twice[i, nl.arange(128)[:, None], nl.arange(64)[None, :]] = nisa.activation(
            op=nl.exp, data=tiles[i, nl.arange(128)[:, None], nl.arange(64)[None, :]], mask=None)
        nl.store(out[128 * i + nl.arange(128)[:, None], nl.arange(64)[None, :]],
                 value=twice[i, nl.arange(128)[:, None], nl.arange(64)[None, :]])  # stored
    return out
"""

MASKS = """
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    i = nl.mgrid[0:128, 0:64]
    for block in nl.affine_range(2):
        mask = block * 128 + i.p < 200
        tile = nl.load(x[block * 128 + i.p, i.x], mask=mask)
        total = nl.sum(tile, axis=[1], mask=mask)
        scaled = nl.multiply(tile * 2.0 + 1, total, mask=mask)
        nl.store(out[block * 128 + i.p, i.x], scaled, mask=mask)
    return out
"""

PRODUCTS = """
def kernel(x):
    out = nl.ndarray((64, 64), dtype=np.float32, buffer=nl.shared_hbm)
    sums = nl.zeros((par_dim(64), 64), nl.float32, buffer=nl.psum, lazy_initialization=True)
    column, row = nl.arange(128)[:, None], nl.arange(64)[None, :]
    greatest = nl.ndarray((par_dim(128), 1), dtype=np.float32)
    for k in nl.affine_range(2):
        tile = nl.load(x[128 * k + column, row])
        sums += nl.matmul(tile, tile, transpose_x=True)
    result = nl.copy(sums)
    nl.store(out, result - 3.0)
    return out
"""

REDUCED = """
def kernel(x):
    out = nl.ndarray((128, 1), dtype=np.float32, buffer=nl.shared_hbm)
    parts = nl.ndarray((4, par_dim(128), 1), dtype=np.float32)
    whole = nl.ndarray((1, par_dim(128), 1), dtype=np.float32)
    p, f = nl.arange(128)[:, None], nl.arange(16)[None, :]
    for j in nl.affine_range(4):
        part = nl.load(x[p, 16 * j + f])
        parts[j, p, 0] = nisa.tensor_reduce(np.max, data=part, axis=[1])
        whole[0, p, 0] = nl.loop_reduce(parts[j, p, 0], op=np.max, loop_indices=[j])
    nl.store(out[p, 0], whole[0, p, 0])
    return out
"""


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        pytest.param(BLOCKS, "256x64", id="blocks"),
        pytest.param(MASKS, "200x64", id="masks"),
        pytest.param(PRODUCTS, "256x64", id="products"),
        pytest.param(REDUCED, "128x64", id="loop_reduce"),
    ],
)
def test_kernels_have_the_same_values(
    body: str, shapes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(HEAD + textwrap.dedent(body).lstrip())
    given = [f"--shapes={shapes}", "--target=trn1"]
    assert main(["nki", "migrate", str(old), *given, f"--to={new}"]) == 0
    told = capsys.readouterr().err
    assert "values are the same" in told or "values differ by" in told
    assert "instructions" in told
    text = new.read_text()
    assert "neuronxcc" not in text
    for gone in ("arange", "par_dim", "mgrid", "mask", "loop_reduce"):
        assert f".{gone}" not in text
    assert main(["nki", "check", str(new), *given]) == 0


def test_comments_and_layout_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.py"
    old.write_text(HEAD + BLOCKS.lstrip())
    assert main(["nki", "migrate", str(old), "--shapes=256x64", "--target=trn1"]) == 0
    text = capsys.readouterr().out
    assert "    # Blocks that live for an iteration.\n" in text
    assert "  # stored\n" in text
    assert "    for i in nl.affine_range(2):\n" in text


def test_what_is_not_translated_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.py"
    body = BLOCKS.replace("mask=None", "mask=nl.arange(64)[None, :] - 32 >= 0")
    old.write_text(HEAD + body.lstrip())
    assert main(["nki", "migrate", str(old), "--shapes=256x64", "--target=trn1"]) == 1
    assert f"{old}:18: not translated: the mask" in capsys.readouterr().err


def test_a_kernel_of_the_present_dialect_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.py"
    old.write_text("import nki\n\n\n@nki.jit\ndef kernel(x):\n    return x\n")
    assert main(["nki", "migrate", str(old), "--shapes=256x64"]) != 0
    assert "is no kernel of NKI 0.x" in capsys.readouterr().err
