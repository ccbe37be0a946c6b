"""Convolutions against XLA:CPU: windows, groups, layouts, gradients, and what follows them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.program.operand import Kind
from neuronjax.program.printer import print_program
from neuronjax.program.walk import kernels
from tests.lower.differential import EXACT, Tolerance, completed, lowered, sent
from tests.lower.test_matmul import PRODUCT, ROUNDED, drawn, held
from tests.program.counts import count_instructions

Convolution = Callable[..., Any]


def conv(
    dims: tuple[str, str, str] = ("NHWC", "HWIO", "NHWC"),
    strides: tuple[int, ...] = (1, 1),
    padding: Any = "VALID",
    **options: Any,
) -> Convolution:
    """A convolution as jax has it."""
    return lambda x, w: jax.lax.conv_general_dilated(
        x, w, strides, padding, dimension_numbers=dims, **options
    )


_NCHW = ("NCHW", "OIHW", "NCHW")
CASES: list[tuple[str, Convolution, tuple[int, ...], tuple[int, ...]]] = [
    ("plain", conv(), (2, 9, 10, 5), (3, 2, 5, 7)),
    ("one tap", conv(), (2, 9, 10, 130), (1, 1, 130, 7)),
    ("many features", conv(), (1, 6, 7, 260), (3, 3, 260, 140)),
    ("features first", conv(_NCHW), (2, 5, 9, 10), (7, 5, 3, 2)),
    ("many features first", conv(_NCHW), (2, 130, 5, 6), (140, 130, 2, 3)),
    ("taps between features", conv(_NCHW, padding="SAME"), (2, 260, 5, 6), (140, 260, 3, 3)),
    ("taps between 96 features", conv(_NCHW), (1, 96, 4, 5), (130, 96, 2, 3)),
    ("mixed orders", conv(("HWNC", "IOHW", "CWNH")), (8, 9, 3, 4), (4, 6, 3, 3)),
    ("same", conv(padding="SAME"), (2, 9, 10, 3), (3, 3, 3, 4)),
    ("strides", conv(strides=(2, 3), padding="SAME"), (2, 17, 19, 64), (3, 3, 64, 8)),
    ("image", conv(strides=(2, 2), padding="SAME"), (1, 32, 32, 3), (7, 7, 3, 16)),
    ("cut", conv(padding=((-1, -2), (1, -3))), (2, 9, 10, 3), (3, 2, 3, 4)),
    ("dilated input", conv(padding=((1, 2), (0, 1)), lhs_dilation=(2, 3)),
     (2, 5, 6, 3), (3, 3, 3, 4)),
    ("dilated and cut", conv(padding=((-2, 1), (-3, -1)), lhs_dilation=(2, 3)),
     (2, 5, 6, 3), (3, 3, 3, 4)),
    ("dilated groups", conv(padding=((1, 3), (2, 0)), lhs_dilation=(3, 2), feature_group_count=2),
     (2, 5, 6, 4), (2, 5, 2, 6)),
    ("dilated window", conv(padding="SAME", rhs_dilation=(2, 3)), (2, 12, 13, 16), (3, 3, 16, 4)),
    ("groups", conv(feature_group_count=3), (2, 7, 8, 12), (3, 3, 4, 9)),
    ("groups of batches", conv(batch_group_count=2), (6, 7, 8, 5), (3, 3, 5, 8)),
    ("depthwise", conv(feature_group_count=12, padding="SAME"), (2, 7, 8, 12), (3, 3, 1, 12)),
    ("depthwise of 20", conv(feature_group_count=20, padding="SAME"), (2, 7, 8, 20), (3, 3, 1, 20)),
    ("depthwise with steps",
     conv(feature_group_count=20, strides=(2, 1), padding=((1, 2), (-1, 2)),
          rhs_dilation=(1, 2)), (2, 9, 8, 20), (3, 2, 1, 20)),
    ("depthwise multiplied", conv(feature_group_count=6), (1, 7, 8, 6), (3, 3, 1, 12)),
    ("depthwise, features first", conv(_NCHW, feature_group_count=6), (1, 6, 7, 8), (6, 1, 3, 3)),
    ("one dimension", conv(("NWC", "WIO", "NWC"), (2,), "SAME"), (2, 31, 5), (4, 5, 6)),
    ("three dimensions", conv(("NDHWC", "DHWIO", "NDHWC"), (1, 2, 1), "SAME"),
     (1, 5, 6, 7, 4), (2, 3, 3, 4, 5)),
    ("no window", conv(("NC", "IO", "NC"), (), ()), (6, 5), (5, 7)),
    ("wide rows", conv(), (1, 3, 600, 8), (3, 3, 8, 4)),
    ("patches, features first", conv(_NCHW, (2, 3)), (2, 5, 8, 9), (7, 5, 2, 3)),
    ("patches, kernel last", conv(("NCHW", "HWIO", "NHWC"), (2, 3)), (2, 5, 8, 9), (2, 3, 5, 7)),
    ("patches in mixed orders", conv(("HCWN", "IHOW", "WNCH"), (4, 2)), (8, 3, 6, 5), (3, 4, 7, 2)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_windows(case: Any) -> None:
    _, function, data, kernel = case
    held(function, drawn(data), drawn(kernel, seed=1))


@pytest.mark.parametrize("case", [CASES[n] for n in (1, 2, 4, 5, 6, 9)], ids=lambda case: case[0])
def test_windows_in_two_bytes(case: Any) -> None:
    _, function, data, kernel = case
    x, w = drawn(data, "bfloat16"), drawn(kernel, "bfloat16", seed=1)
    held(function, x, w, tolerance=ROUNDED)


def test_weights_with_taps_between_features_are_transposed() -> None:
    """Each number in its place would be a transfer of its own."""
    x, w = drawn((1, 260, 6, 6), "bfloat16"), drawn((384, 260, 3, 3), "bfloat16", seed=1)
    program = held(conv(_NCHW, padding="SAME"), x, w, tolerance=ROUNDED)
    assert count_instructions(program)["tensor_transpose"] > 0


def test_reversed_window() -> None:
    def function(x: Any, w: Any) -> Any:
        return jax.lax.conv_transpose(x, w, (2, 1), "SAME", transpose_kernel=True)

    held(function, drawn((2, 6, 7, 4)), drawn((3, 3, 5, 4)))


def test_integers() -> None:
    function = conv(padding="SAME", preferred_element_type=jnp.int32)
    held(function, drawn((1, 5, 6, 3), "int8"), drawn((3, 3, 3, 4), "int8"), tolerance=EXACT)


EPILOGUES: list[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]] = [
    ("bias", lambda y, b: y + b, ((20,),)),
    ("relu", lambda y, b: jnp.maximum(y + b, 0), ((20,),)),
    ("residual", lambda y, r: jax.nn.silu(y + r), ((2, 7, 8, 20),)),
    ("cast", lambda y: y.astype(jnp.bfloat16), ()),
]


@pytest.mark.parametrize("case", EPILOGUES, ids=lambda case: case[0])
def test_epilogues(case: Any) -> None:
    _, function, shapes = case
    x, w = drawn((2, 9, 10, 12)), drawn((3, 3, 12, 20), seed=1)
    others = [drawn(shape) for shape in shapes]
    tolerance = Tolerance(ulps=2, relative=1e-5)
    program = held(lambda x, w, *o: function(conv()(x, w), *o), x, w, *others, tolerance=tolerance)
    assert len(list(kernels(program))) == 1


GRADIENTS = [
    CASES[0], CASES[3], CASES[7], CASES[13], CASES[14], CASES[15], CASES[16], CASES[19],
    ("rows cut between partitions", conv(padding="SAME"), (3, 10, 90, 3), (3, 3, 3, 4)),
    ("rows cut between partitions, features first", conv(_NCHW, (2, 2), "SAME"),
     (4, 3, 9, 130), (4, 3, 3, 3)),
]  # fmt: skip


@pytest.mark.parametrize("case", GRADIENTS, ids=lambda case: case[0])
def test_gradients(case: Any) -> None:
    _, function, data, kernel = case
    x, w = drawn(data), drawn(kernel, seed=1)
    shape = jax.eval_shape(function, x, w).shape

    def step(x: Any, w: Any, g: Any) -> Any:
        return jax.vjp(function, x, w)[1](g)

    held(step, x, w, drawn(shape, seed=2), tolerance=PRODUCT)


NARROW_GROUPS: list[tuple[str, Any, tuple[int, ...], tuple[int, ...]]] = [
    ("depthwise", conv(feature_group_count=64, padding="SAME"), (1, 64, 64, 64), (3, 3, 1, 64)),
    ("depthwise with steps", conv(feature_group_count=64, strides=(2, 2), padding="SAME"),
     (1, 129, 128, 64), (3, 3, 1, 64)),
    ("groups of 4 channels", conv(feature_group_count=8, padding="SAME"),
     (2, 128, 64, 32), (3, 3, 4, 64)),
    ("features first", conv(_NCHW, feature_group_count=32, padding="SAME"),
     (1, 64, 128, 64), (64, 2, 3, 3)),
]  # fmt: skip


@pytest.mark.parametrize("case", NARROW_GROUPS, ids=lambda case: case[0])
def test_narrow_groups_are_convolved_together(case: Any) -> None:
    _, function, data, kernel = case
    x, w = drawn(data, "bfloat16"), drawn(kernel, "bfloat16", seed=1)
    program = held(function, x, w, tolerance=ROUNDED)
    assert "if usually" in print_program(program)
    odd = np.array(x)
    odd[0, 3, 5, 7], odd[0, 9, 1, 2] = np.inf, np.nan
    held(function, odd, w, tolerance=ROUNDED)


@pytest.mark.parametrize("case", NARROW_GROUPS[:3], ids=lambda case: case[0])
def test_gradients_of_narrow_groups(case: Any) -> None:
    _, function, data, kernel = case
    x, w = drawn(data, "bfloat16"), drawn(kernel, "bfloat16", seed=1)
    shape = jax.eval_shape(function, x, w).shape

    def step(x: Any, w: Any, g: Any) -> Any:
        return jax.vjp(lambda w: function(x, w), w)[1](g)

    held(step, x, w, drawn(shape, "bfloat16", seed=2), tolerance=ROUNDED)


def test_dilated_inputs_are_not_written_out() -> None:
    """The gradient of patches has as many bytes beside its result as the result, about."""
    patches = conv(strides=(16, 16))

    def gradient(x: jax.Array, w: jax.Array, y: jax.Array) -> Any:
        return jax.vjp(lambda x: patches(x, w), x)[1](y)

    image, kernel, results = (2, 48, 48, 3), (16, 16, 3, 8), (2, 3, 3, 8)
    program = held(gradient, drawn(image), drawn(kernel, seed=1), drawn(results, seed=2))
    scratch = [each.extent for each in program.buffers if each.kind is Kind.SCRATCH]
    assert sum(scratch) <= 4 * 4 * math.prod(image)


def test_gradient_of_wide_patches() -> None:
    """All patches of an image are contracted, and together they do not fit into SBUF."""
    patches = conv(strides=(16, 16))

    def gradient(x: jax.Array, w: jax.Array, y: jax.Array) -> Any:
        return jax.vjp(lambda w: patches(x, w), w)[1](y)

    image, kernel, results = (2, 224, 224, 3), (16, 16, 3, 8), (2, 14, 14, 8)
    held(gradient, drawn(image), drawn(kernel, seed=1), drawn(results, seed=2), tolerance=PRODUCT)


def test_panels_of_a_batch_of_wide_patches_fit() -> None:
    """Of few columns they are no smaller: what lies between is loaded along."""
    patches = conv(strides=(16, 16))
    image, kernel, results = (64, 224, 224, 3), (16, 16, 3, 768), (64, 14, 14, 768)
    traced = jax.jit(lambda x, w, y: jax.vjp(lambda w: patches(x, w), w)[1](y)).trace(
        *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (image, kernel, results))
    )
    assert count_instructions(completed(lowered(sent(traced), lnc=2)))["nc_matmul"] > 0


def test_a_network_learns() -> None:
    """Gradients of two layers with pooling between them."""

    def loss(w: Any, x: Any) -> Any:
        x = jax.nn.relu(conv(padding="SAME")(x, w[0]))
        x = conv(strides=(2, 2), padding="SAME")(x, w[1])
        return jnp.mean(x * x)

    weights = [drawn((3, 3, 3, 8)), drawn((3, 3, 8, 6), seed=1)]
    held(jax.grad(loss), weights, drawn((2, 8, 8, 3)), tolerance=Tolerance(relative=1e-4))
