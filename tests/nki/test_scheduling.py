"""Dependencies that kernels add between instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import NeuronError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

X = np.random.default_rng(0).uniform(1, 2, (128, 8)).astype(np.float32)
EXPECTED = 1 / X.astype(np.float64) + X + 1


def sums(x: Tensor) -> Tensor:
    """1 / x + (x + 1), of NKI's guide to scheduling."""
    on_chip, inverse, more = loaded(x), tile(x.shape), tile(x.shape)
    nisa.reciprocal(inverse, on_chip, name="recip")
    nisa.tensor_scalar(more, on_chip, nl.add, 1.0, name="plus1")
    nisa.tensor_tensor(more, inverse, more, nl.add, name="sum")
    return stored(more)


def chained(x: Tensor) -> Tensor:
    on_chip, inverse, more = loaded(x), tile(x.shape), tile(x.shape)
    first = nisa.reciprocal(inverse, on_chip)
    second = nisa.tensor_scalar(more, on_chip, nl.add, 1.0).depends_on(first)
    nisa.tensor_tensor(more, inverse, more, nl.add).depends_on(second).depends_on(first, second)
    return stored(more)


KERNELS: dict[str, nki.Kernel] = {
    "names": nki.jit(sums).with_schedule([("plus1", "recip")]),
    "lists of names": nki.jit(sums).with_schedule([("plus1", ["recip"]), ("sum", ("plus1",))]),
    "instructions": nki.jit(chained),
}


@pytest.mark.parametrize("order", [None, core.DataflowOrder(seed=1, adversarial=True)], ids=str)
@pytest.mark.parametrize("case", KERNELS)
def test_values_stay_and_a_note_says_that_times_do(case: str, order: Any) -> None:
    kernel = KERNELS[case]
    np.testing.assert_allclose(nki.simulate(kernel, order)(X), EXPECTED, rtol=1e-6)
    assert any("add no waits" in note for note in kernel.trace(X).notes)
    assert nki.benchmark(kernel, X).total_ns == nki.benchmark(sums, X).total_ns


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a near name": (
        lambda: nki.simulate(nki.jit(sums).with_schedule([("plus", "recip")]))(X),
        r"sums has no instruction with name='plus'\. Did you mean plus1\?",
    ),
    "a circle": (
        lambda: nki.jit(sums).with_schedule([("plus1", "recip"), ("recip", "plus1")]),
        "'plus1' depends on itself",
    ),
    "no pairs": (lambda: nki.jit(sums).with_schedule(["plus1"]), "no 'plus1'; pass pairs"),
    "a number": (lambda: nki.jit(sums).with_schedule(3), "no None; pass pairs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_schedule(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises(NeuronError, match=words):
        call()


def in_a_loop(x: Tensor, t: Tensor) -> None:
    for _ in nl.dynamic_range(nisa.register_alloc(2)):
        inner = nisa.tensor_copy(t, t)
    nisa.tensor_copy(t, t).depends_on(inner)


def on_a_later(x: Tensor, t: Tensor) -> None:
    first = nisa.tensor_copy(t, t)
    first.depends_on(nisa.tensor_copy(t, t))


MISUSED: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "a tile": (lambda x, t: nisa.tensor_copy(t, t).depends_on(t), "depends_on takes no a tensor"),
    "a later one": (on_a_later, "tensor_copy of .* cannot depend on .* which is written later"),
    "one of a loop": (in_a_loop, "cannot depend on .*, which is in a loop over a register"),
    "the result as a tile": (
        lambda x, t: nl.exp(nisa.tensor_copy(t, t)),
        "Instructions write to their dst|writes to dst, a tile that you declare",
    ),
    "the result as an operand": (
        lambda x, t: nisa.tensor_copy(t, nisa.tensor_copy(t, t)),
        "no src=the instruction tensor_copy of .*Instructions write to their dst",
    ),
    "a part of the result": (lambda x, t: nisa.tensor_copy(t, t)[0], "has no elements: nki.isa"),
}


@pytest.mark.parametrize("case", MISUSED)
def test_what_instructions_are_not(case: str) -> None:
    act, words = MISUSED[case]

    def kernel(x: Tensor) -> Tensor:
        act(x, loaded(x))
        return stored(loaded(x))

    with pytest.raises(NeuronError, match=rf"test_scheduling.py:\d+: .*({words})"):
        nki.simulate(kernel)(X)
