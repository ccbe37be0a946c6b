"""What releases of the Neuron SDK do wrong is a note at the line that meets it: by release, by chip
and by what is called."""

from __future__ import annotations

from typing import Any

import jax
import neuronxcc.nki as earlier
import neuronxcc.nki.language as earlier_nl
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.nki import collectives as ncc
from neuronjax.nki import language as nl
from neuronjax.nki.known_failures import FAILURES
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored
from tests.nki.test_documented_limits import NAMES, h, t, z


def run(loops: int) -> None:
    """As many loops within each other, over registers."""
    for _ in nl.dynamic_range(NAMES["register_alloc"](2)) if loops else ():
        NAMES["memset"](t((64, 8)), 0)
        run(loops - 1)


def exchanged(has_rdispls: bool = False) -> None:
    counts, group = h((3 + has_rdispls, 2), nl.uint32), ncc.ReplicaGroup([[0, 1]])
    ncc.all_to_all_v([h((8, 8))], [h((8, 8))], group, counts, has_rdispls=has_rdispls)


def turned(**given: Any) -> None:
    table = h((64, 16), nl.bfloat16).ap(
        [[16, 16], [1, 16]], vector_offset=z((16, 1), nl.uint32), indirect_dim=0
    )
    NAMES["dma_transpose"](t((16, 16), nl.bfloat16), table, axes=(1, 0), **given)


def begun(tile: Tensor) -> Tensor:
    return tile[:, nl.ds(NAMES["register_alloc"](2), 4)]


CALLS = {**NAMES, "run": run, "exchanged": exchanged, "turned": turned, "begun": begun}
GATHERED = "local_gather(z((128, 8)), z((128, 8)), z((128, 4), u16), {})"
SELECTED = "range_select(a(), a(), ge, lt, v(), v(), reduce_cmd.{}, v())"

CASES = [
    # words | chip, SDK, programs | a call that meets it | one that does not | releases without it
    ("#1390", "trn2 2.32", "turned(oob_mode=oob_mode.skip)", "turned()", ("trn2 2.31",)),
    ("Runtime 2.32", "trn3 2.31", "turned(oob_mode=oob_mode.skip)", "turned()", ("trn3 2.32",)),
    ("#1373", "trn2 2.31", "dma_copy(h((64, 4)), begun(a()))",
     "dma_copy(z((64, 4)), begun(h((64, 8))))", ("trn2 2.32",)),
    ("#1296", "trn1 2.32", "activation(a(), nl.copy, a(), bias=v())",
     "activation(a(), nl.relu, a(), bias=v())", ("trn2 2.32", "trn1 2.27")),
    ("NKI 0.2.0", "trn2 2.28", SELECTED.format("reduce"), SELECTED.format("reset_reduce"),
     ("trn2 2.29", "trn2 2.27")),
    ("NKI 0.4.0", "trn2 2.29", "nc_transpose(z((32, 32)), z((32, 32)), engine=engine.vector)",
     "nc_transpose(p((32, 32)), z((32, 32)))", ("trn2 2.30",)),
    ("NKI 0.6.0", "trn2 2.32", GATHERED.format("num_valid_indices=4"),
     GATHERED.format("num_valid_indices=8"), ("trn2 2.31",)),
    ("NKI 0.3.0", "trn3 2.31 2", "exchanged(has_rdispls=True)", "exchanged()", ("trn3 2.32 2",)),
    ("#1388", "trn2 2.32", "run(1)", "a()", ("trn2 2.31", "trn3 2.32")),
    ("Could not find register", "trn3 2.32", "run(2)", "run(1)", ("trn3 2.29",)),
    ("too early", "trn2 2.29", "run(1)", "a()", ("trn2 2.30",)),
    ("never advance", "trn2 2.27", "run(1)", "a()", ("trn2 2.28",)),
    ("broadcast nothing", "trn2 2.32", "nl.add(a(), v())", "nl.add(a(), a())", ("trn2 2.28",)),
    ("nl.divide", "trn2 2.32", "nl.divide(a(), a())", "nl.tan(a())", ("trn2 2.28",)),
    ("nl.power", "trn2 2.32", "nl.power(a(), 2.0)", "nl.power(a(), a())", ("trn2 2.28",)),
    ("nl.matmul", "trn2 2.32", "nl.matmul(z((64, 64)), a())",
     "nl.matmul(a(), a(), transpose_x=True)", ("trn2 2.28",)),
    ("2^23", "trn2 2.32", "nl.copy(i())", "nl.copy(i(), f32)", ("trn2 2.28",)),
    ("nl.copy takes", "trn2 2.32", "nl.copy(p((64, 8)))", "nl.copy(a())", ("trn2 2.28",)),
    ("nl.rand", "trn2 2.32", "nl.rand((64, 8), f32)", "a()", ("trn3 2.32",)),
]  # fmt: skip


def noted(call: str, release: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notes of a kernel with a call, on a chip with an SDK, by one program or more."""
    target, sdk, *programs = release.split()
    monkeypatch.setenv("NEURONJAX_SDK", sdk)

    def kernel(x: Tensor) -> Tensor:
        eval(call, CALLS)
        return stored(loaded(x))

    traced = nki.jit(kernel)[int(*programs) or 1].trace(np.zeros((8, 8), np.float32), target=target)
    return [note for note in traced.notes if "Neuron SDK" in note]


@pytest.mark.parametrize(("words", "release", "call", "other", "releases"), CASES)
def test_what_releases_do_wrong(
    words: str,
    release: str,
    call: str,
    other: str,
    releases: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (note,) = (note for note in noted(call, release, monkeypatch) if words in note)
    assert note.startswith(f"{__file__}:")
    assert f"Neuron SDK {release.split()[1]}" in note
    assert not any(words in note for note in noted(other, release, monkeypatch))
    for without in releases:
        assert not any(words in note for note in noted(call, without, monkeypatch))


def test_cores_that_take_different_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = noted("run(1)", "trn2 2.32 2", monkeypatch)
    assert "take the same way" in note


def test_the_earlier_dialect_meets_no_failure_of_the_present_one() -> None:
    def kernel(x: Any) -> Any:
        out = earlier_nl.ndarray((64, 8), dtype=np.float32, buffer=earlier_nl.shared_hbm)
        tile = earlier_nl.load(x)
        earlier_nl.store(out, tile + earlier_nl.load(x[:, 0:1]))
        return out

    traced = earlier.jit(kernel).trace(jax.ShapeDtypeStruct((64, 8), np.float32))
    assert not any("Neuron SDK" in note for note in traced.notes)


def test_every_failure_names_a_public_source() -> None:
    for failure in FAILURES:
        assert "#" in failure.source or "2." in failure.source or "NKI 0." in failure.source
