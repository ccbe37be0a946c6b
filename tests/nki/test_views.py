"""Views of tensors, compared with what numpy makes of an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import KernelError, KernelWarning, NeuronError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

RNG = np.random.default_rng(0)
TILE = RNG.standard_normal((128, 4, 6), np.float32)
TABLE = RNG.standard_normal((9, 32, 8), np.float32)
ROWS = RNG.integers(0, 9, (32, 1)).astype(np.int32)
ONE = np.full((1, 1), 5, np.int32)
NAMES = """
shape strides name dtype buffer ndim size is_contiguous get_pattern is_indirect permute broadcast
expand_dim squeeze_dim reshape_dim flatten_dims reshape rearrange slice select vector_select ap view
reinterpret_cast indirect
"""
"""Of NkiTensor in NKI's API reference, 0.6."""

ON_CHIP: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "permute": (lambda t: t.permute((0, 2, 1)), lambda x: x.transpose(0, 2, 1)),
    "reshape": (lambda t: t.reshape((128, 3, 8)), lambda x: x.reshape(128, 3, 8)),
    "reshape_half": (
        lambda t: t[:, 0:2].reshape((128, 3, 4)),
        lambda x: x[:, 0:2].reshape(128, 3, 4),
    ),
    "split_strided": (
        lambda t: t[:, :, 0:6:3].reshape((128, 2, 2, 2)),
        lambda x: x[:, :, 0:6:3].reshape(128, 2, 2, 2),
    ),
    "reshape_dim": (lambda t: t.reshape_dim(2, (2, -1)), lambda x: x.reshape(128, 4, 2, 3)),
    "flatten_dims": (lambda t: t.flatten_dims(1, 2), lambda x: x.reshape(128, 24)),
    "rearrange": (
        lambda t: t.rearrange(("b", "c", ("h", "w")), ("b", "h", "c", "w"), {"h": 2}),
        lambda x: x.reshape(128, 4, 2, 3).transpose(0, 2, 1, 3),
    ),
    "slice": (lambda t: t.slice(2, 1, 6, 2), lambda x: x[:, :, 1:6:2]),
    "select": (lambda t: t.select(1, 3), lambda x: x[:, 3]),
    "squeeze_dim": (lambda t: t.slice(1, 2, 3).squeeze_dim(1), lambda x: x[:, 2]),
    "expand_dim": (lambda t: t.expand_dim(1), lambda x: x[:, None]),
    "broadcast": (
        lambda t: t.expand_dim(2).broadcast(2, 3),
        lambda x: np.repeat(x[:, :, None], 3, 2),
    ),
    "pattern": (lambda t: t[:, 1:3].ap(t[:, 1:3].get_pattern()), lambda x: x[:, 1:3]),
    "pattern from the begin": (
        lambda t: t[:, 1:3].ap(t[:, 1:3].get_pattern(), offset=0),
        lambda x: x[:, 0:2],
    ),
    "pattern from a partition on": (
        lambda t: t[32:64].ap([[24, 32], [1, 24]], offset=64 * 24),
        lambda x: x[64:96].reshape(32, 24),
    ),
}


@pytest.mark.parametrize("case", ON_CHIP)
def test_of_a_tile(case: str) -> None:
    view, expected = ON_CHIP[case]

    def kernel(x: Tensor) -> Tensor:
        seen = view(loaded(x))
        result = tile(seen.shape)
        nisa.tensor_copy(result, seen)
        return stored(result)

    np.testing.assert_array_equal(nki.simulate(kernel)(TILE), expected(TILE))


def test_a_pattern_may_have_the_partitions_of_a_view() -> None:
    """Kernels of nki-library make patterns of views by their shapes."""

    def kernel(x: Tensor) -> Tensor:
        half = loaded(x.reshape((128, 24))).slice(1, 12, 24)
        result = tile((32, 8))
        nisa.tensor_copy(result, half.ap([[12, 32], [1, 8]], offset=64 * 12 + 4))
        return stored(result)

    with pytest.warns(KernelWarning, match="first step is 12 elements, but partitions have 24"):
        result = nki.simulate(kernel)(TILE)
    np.testing.assert_array_equal(result, TILE.reshape(128, 24)[64:96, 16:])


FROM_HBM: dict[str, tuple[Callable[..., Tensor], np.ndarray]] = {
    "select": (lambda x, rows, one: x.select(0, 2), TABLE[2]),
    "register": (lambda x, rows, one: x.select(0, nisa.register_alloc(one)), TABLE[5]),
    "tile": (lambda x, rows, one: x.select(0, loaded(one)), TABLE[5]),
    "rows": (lambda x, rows, one: x.vector_select(0, loaded(rows)), TABLE[ROWS[:, 0]]),
    "columns of rows": (
        lambda x, rows, one: x.vector_select(0, loaded(rows)).slice(2, 1, 8, 3).permute((0, 2, 1)),
        TABLE[ROWS[:, 0]][:, :, 1:8:3].transpose(0, 2, 1),
    ),
    "flat rows": (
        lambda x, rows, one: x.vector_select(0, loaded(rows)).flatten_dims(1, 2),
        TABLE[ROWS[:, 0]].reshape(32, 256),
    ),
}


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("case", FROM_HBM)
def test_of_memory(case: str, target: str) -> None:
    """Also where the program decides about an address, on chips that make descriptors by software
    and by hardware."""
    view, expected = FROM_HBM[case]

    def kernel(x: Tensor, rows: Tensor, one: Tensor) -> Tensor:
        seen = view(x, rows, one)
        result = tile(seen.shape)
        nisa.dma_copy(dst=result, src=seen)
        return stored(result)

    for order in (None, core.DataflowOrder(seed=1, adversarial=True)):
        simulated = nki.simulate(kernel, order, target=target)
        np.testing.assert_array_equal(simulated(TABLE, ROWS, ONE), expected)


def test_what_a_tensor_says_of_itself() -> None:
    def kernel(x: Tensor) -> Tensor:
        on_chip = nl.ndarray((128, 4, 6), nl.float32, name="scores")
        assert on_chip.name.startswith("scores")
        assert on_chip[:, 1:3, 0:6:2].get_pattern() == [[24, 128], [6, 2], [2, 3]]
        assert not x.is_indirect()
        assert x.ap([[24, 128], [1, 24]], scalar_offset=nisa.register_alloc(0)).is_indirect()
        assert x.reshape((512, 6))[3, 1].shape == (1,)
        for name in NAMES.split():
            assert hasattr(x, name), name
        return stored(loaded(x))

    np.testing.assert_array_equal(nki.simulate(kernel)(TILE), TILE)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "too many elements": (lambda t: t.reshape((128, 5)), r"reshape\(\(128, 5\)\) of a tensor"),
    "other partitions": (lambda t: t.reshape((64, 48)), r"cannot be a view of it; copy it"),
    "across a permutation": (lambda t: t.permute((0, 2, 1)).flatten_dims(1, 2), "cannot be a view"),
    "of sizes": (lambda t: t.reshape(128, 24), r"tensor.reshape\(shape\): too many positional"),
    "far dimension": (lambda t: t.expand_dim(9), r"expand_dim\(9\) of a tensor"),
    "far repetition": (lambda t: t.broadcast(9, 2), r"broadcast\(9, 2\) of a tensor"),
    "other names": (lambda t: t.rearrange(("a", "b", "c"), ("a", "b")), r"rearrange\(.*cannot be"),
    "rows of a tile": (lambda t: t.vector_select(0, t), r"vector_select\(0, a tensor.*cannot be"),
    "chosen columns": (lambda t: t.indirect(t), "tensor.indirect is not built: .*nc_n_gather"),
    "misspelt": (lambda t: t.reshap((128, 24)), "a tensor has no 'reshap'. Did you mean reshape"),
    "of numpy": (lambda t: t.transpose(1, 0), "no 'transpose'. Use permute, nl.transpose or nisa"),
    "a number of numpy": (lambda t: t.item(), "no 'item'. Use nisa.register_load"),
    "backwards": (lambda t: t[:, ::-1], "the step of ::-1 is -1; pass a positive one"),
    "many indices": (lambda t: t[0, 0, 0, 0], "4 indices are too many for shape"),
    "numbers for pairs": (lambda t: t.ap([24, 128]), r"\[24, 128\] is no pattern; pass \[step"),
    "nothing": (lambda t: t.ap([]), r"\[\] is no pattern"),
    "halves": (lambda t: t.ap([[24, 128], [1, 1.5]]), "is no pattern"),
    "misspelt pattern": (lambda t: t.ap(patern=[[24, 128]]), "'patern'. Did you mean pattern"),
    "far register": (
        lambda t: t.ap([[24, 128], [1, 6]], scalar_offset=nisa.register_alloc(0), indirect_dim=7),
        "indirect_dim=7 of a tensor with 3 dimensions; pass a number from 0 to 2",
    ),
    "two offsets": (
        lambda t: t.ap([[24, 128]], scalar_offset=nisa.register_alloc(0), vector_offset=t),
        "scalar_offset or vector_offset, but not both",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    view, words = REFUSED[case]

    def kernel(x: Tensor) -> Tensor:
        nisa.tensor_copy(tile((128, 24)), view(loaded(x)))
        return x

    with pytest.raises(NeuronError, match=rf"test_views.py:\d+: .*{words}"):
        nki.simulate(kernel)(TILE)


def test_attributes_that_others_look_for_are_not_there() -> None:
    def kernel(x: Tensor) -> Tensor:
        assert not hasattr(x, "__jax_array__")
        assert not hasattr(x, "astype")
        return stored(loaded(x))

    np.testing.assert_array_equal(nki.simulate(kernel)(TILE), TILE)
    with pytest.raises(KernelError, match=r"a tensor has no 'astype'\. Use nl.copy"):
        nki.simulate(lambda x: x.astype(nl.bfloat16))(TILE)
