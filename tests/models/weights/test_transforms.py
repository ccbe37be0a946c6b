"""Transforms: the formulas, both ways, as views."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.weights.transforms import (
    FLAT,
    KERNEL,
    OUTPUT_KERNEL,
    SAME,
    Alternating,
    Fused,
    Kernel,
    Permuted,
    Transform,
)

# transform, number of axes of each parameter, axes whose size must agree among parameters
CASES: dict[str, tuple[Transform, list[int]]] = {
    "same": (SAME, [3]),
    "flat": (FLAT, [2]),
    "kernel": (KERNEL, [2]),
    "kernel to heads": (KERNEL, [3]),
    "kernel from heads": (OUTPUT_KERNEL, [3]),
    "kernel of each expert": (Kernel(batch_axes=1), [3]),
    "unswapped": (Kernel(swap=False), [3]),
    "alternating": (Alternating(Permuted((0, 2, 1)), axis=1), [3]),
    "convolution": (Permuted((2, 3, 1, 0)), [4]),
    "convolution over time": (Permuted((2, 1, 0)), [3]),
}


def distinct(shape: tuple[int, ...], start: int = 0) -> np.ndarray:
    return np.arange(start, start + np.prod(shape), dtype=np.int64).reshape(shape)


@pytest.mark.parametrize("name", CASES)
@given(st.data())
def test_joining_undoes_splitting(name: str, data: st.DataObject) -> None:
    transform, ranks = CASES[name]
    shapes = [data.draw(st.tuples(*[st.integers(1, 4)] * rank), label="shape") for rank in ranks]
    (stored,) = transform.stored_shapes(shapes)
    tensor = distinct(stored)
    parameters = transform.split([tensor], shapes)
    assert [parameter.shape for parameter in parameters] == shapes
    assert all(np.shares_memory(parameter, tensor) for parameter in parameters)
    np.testing.assert_array_equal(transform.join(parameters)[0], tensor)


def test_alternating_outputs() -> None:
    gate, up = distinct((2, 3, 4)), distinct((2, 3, 4), 100)
    tensor = np.empty((2, 8, 3), np.int64)  # as gpt-oss has it: gate, up, gate, …
    tensor[:, ::2], tensor[:, 1::2] = gate.swapaxes(1, 2), up.swapaxes(1, 2)
    transform = Alternating(Permuted((0, 2, 1)), axis=1)
    np.testing.assert_array_equal(transform.join([gate, up])[0], tensor)
    for part, expected in zip(
        transform.split([tensor], [gate.shape, up.shape]), (gate, up), strict=True
    ):
        np.testing.assert_array_equal(part, expected)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_fused_heads_stand_one_after_another(dim: int, heads: int, kv: int, width: int) -> None:
    shapes = [(dim, heads, width), (dim, kv, width), (dim, kv, width)]
    transform = Fused(KERNEL)
    assert transform.stored_shapes(shapes) == [((heads + 2 * kv) * width, dim)]
    tensor = distinct(((heads + 2 * kv) * width, dim))
    query, key, value = transform.split([tensor], shapes)
    x = np.arange(1, dim + 1)
    together = tensor @ x  # as PyTorch computes the fused projection
    apart = [np.tensordot(x, part, 1).reshape(-1) for part in (query, key, value)]
    np.testing.assert_array_equal(np.concatenate(apart), together)
    np.testing.assert_array_equal(transform.join([query, key, value])[0], tensor)


def test_fused_experts() -> None:
    transform = Fused(Kernel(batch_axes=1), axis=1)
    shapes = [(3, 4, 2), (3, 4, 2)]  # [E, D, F]
    assert transform.stored_shapes(shapes) == [(3, 4, 4)]  # [E, 2 F, D]
    tensor = distinct((3, 4, 4))
    gate, up = transform.split([tensor], shapes)
    x = np.arange(4)
    for e in range(3):
        np.testing.assert_array_equal(np.concatenate([x @ gate[e], x @ up[e]]), tensor[e] @ x)
    np.testing.assert_array_equal(transform.join([gate, up])[0], tensor)


@pytest.mark.parametrize("in_axes", [1, 2])
def test_kernels_compute_what_pytorch_computes(in_axes: int) -> None:
    shape = (2, 3, 4)
    transform = Kernel(in_axes)
    (stored,) = transform.stored_shapes([shape])
    tensor = distinct(stored)
    (kernel,) = transform.split([tensor], [shape])
    x = distinct(shape[:in_axes], 1)
    np.testing.assert_array_equal(
        np.tensordot(x, kernel, in_axes).reshape(-1), tensor @ x.reshape(-1)
    )


def test_convolution_kernels() -> None:
    tensor = distinct((5, 3, 2, 4))  # OIHW
    (kernel,) = Permuted((2, 3, 1, 0)).split([tensor], [(2, 4, 3, 5)])
    for o, i, h, w in np.ndindex(tensor.shape):
        assert kernel[h, w, i, o] == tensor[o, i, h, w]
