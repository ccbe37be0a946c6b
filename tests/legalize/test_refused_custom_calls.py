"""Custom calls that the compiler refuses, and the messages about them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import jax
import numpy as np
import pytest

from neuronjax.errors import UnsupportedProgramError
from neuronjax.legalize import custom_calls as ours
from tests.legalize.chip import run
from tests.legalize.custom_call import (
    ALONE,
    F32,
    IMAGE,
    MATRIX,
    MX_INPUT,
    MX_RESULTS,
    SCALES,
    TRN3,
    U32,
    VECTOR,
    WORDS,
    call,
    dot_config,
    error_of,
    mx_config,
)


def line_of_call() -> str:
    lines, first = inspect.getsourcelines(call)
    inside = next(i for i, line in enumerate(lines) if "ffi_call" in line)
    return f"{inspect.getsourcefile(call)}:{first + inside}"


@pytest.mark.parametrize("target", [*ours.REFUSED, "AwsNeuronNobody", "nobody"])
def test_refused(target: str) -> None:
    text = error_of(target, [((3,), F32)], None, [np.ones(3, F32)])
    assert text.startswith(f"custom call {target} at {line_of_call()} ")
    assert re.search("use |compute |write |let ", text), "no remedy"


def test_refused_by_the_platform(neuron_devices: list[jax.Device]) -> None:
    x = jax.device_put(np.ones(3, F32), neuron_devices[0])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"UNIMPLEMENTED: .*AwsNeuronCustomOp at"):
        jax.jit(lambda x: call("AwsNeuronCustomOp", [((3,), F32)], None, x))(x)
    np.testing.assert_array_equal(x + 1, [2, 2, 2])


BAD: dict[str, tuple[str, Any, str | None, list[Any], str]] = {
    "integers": ("AwsNeuronGelu", [((3,), np.int32)], None, [np.ones(3, np.int32)], "type int32"),
    "operands": ("AwsNeuronErf", [((3,), F32)], None, [VECTOR, VECTOR], "2 operands .* takes 1"),
    "result": ("AwsNeuronSilu", [((4,), F32)], None, [VECTOR], r"\(4,\).* give .*\(3,\)"),
    "results": ("AwsNeuronTopK", [((2,), F32)], "2", [VECTOR], "declares results of shapes"),
    "no axis": ("AwsNeuronSoftmax", [((3,), F32)], None, [VECTOR], "decimal number .* has ''"),
    "axis": ("AwsNeuronArgMax", [((4,), U32)], "2", [MATRIX], "0 to 1, .* has '2'"),
    "negative axis": ("AwsNeuronSoftmax", [((3,), F32)], "-1", [VECTOR], "has '-1'"),
    "scalar": ("AwsNeuronArgMin", [((), U32)], "0", [np.float32(1)], "has '0'"),
    "no elements": ("AwsNeuronArgMin", [((), U32)], "0", [VECTOR[:0]], "no elements"),
    "many k": ("AwsNeuronTopK", [((4,), F32), ((4,), U32)], "4", [VECTOR], "takes 4 elements"),
    "shapes": (
        "AwsNeuronSoftmaxBackward", [((4, 6), F32)], "1", [MATRIX, VECTOR], "must be the same"
    ),
    "int matmul": ("AwsNeuronIntMatmult", [((4, 4), F32)], None, [MATRIX, MATRIX], "than integers"),
    "contraction": (
        "AwsNeuronIntMatmult", [((1, 1), np.int32)], None, [np.ones((2, 3), int)] * 2, "must be"
    ),
    "dropout types": ("AwsNeuronDropoutMaskV1", [((3,), F32)], None, [VECTOR, VECTOR], "the seed"),
    "dropout shapes": (
        "AwsNeuronDropoutMaskV1", [((3,), F32)], None, [VECTOR, np.int32(1)], "make them scalars"
    ),
    "weight": (
        "AwsNeuronRmsNorm", [((4, 6), F32)], "1", [MATRIX, VECTOR, np.float32(0)], r"be \(6,\)"
    ),
    "epsilon": (
        "AwsNeuronRmsNorm", [((3,), F32)], "0", [VECTOR, VECTOR, VECTOR], "not a scalar"
    ),
    "both corners and centers": ("ResizeNearest", [((1, 4, 4, 1), F32)], "11", [IMAGE], "00, 01"),
    "no image": ("ResizeBilinear", [((6,), F32)], "00", [VECTOR], "batch, height, width"),
    "marker": ("NeuronBoundaryMarker-End", [((4,), F32)], None, [VECTOR], "operands' types"),
    "groups": (
        "AwsNeuronCollectiveMatmul", [((4, 4), F32)], ALONE.replace("groups=1", "groups=2"),
        [MATRIX, MATRIX.T], "2 groups.*all_gather",
    ),
    "cores": (
        "AwsNeuronCollectiveMatmul", [((32, 4), F32)], ALONE.replace("degree=1", "degree=8"),
        [MATRIX, MATRIX.T], "8 of 1 cores",
    ),
    "matmul": (
        "AwsNeuronCollectiveMatmul", [((4, 6), F32)], ALONE, [MATRIX, MATRIX], "equal there"
    ),
    "matmul config": (
        "AwsNeuronCollectiveMatmul", [((4, 6), F32)], "0", [MATRIX, MATRIX.T], "tp_degree=<number>"
    ),
    "no JSON": ("QuantizeMX", MX_RESULTS, "{", [MX_INPUT], "a JSON object"),
    "JSON list": ("QuantizeMX", MX_RESULTS, "[]", [MX_INPUT], "a JSON object"),
    "MX element": ("QuantizeMX", MX_RESULTS, mx_config(dtype="int8"), [MX_INPUT], "float8_e5m2"),
    "MX dim": ("QuantizeMX", MX_RESULTS, mx_config(dim=[1]), [MX_INPUT], "last dimension"),
    "MX fraction": ("QuantizeMX", MX_RESULTS, mx_config(dim=1.0), [MX_INPUT], "last dimension"),
    "MX block": ("QuantizeMX", MX_RESULTS, mx_config(block_size=16), [MX_INPUT], "block_size 32"),
    "MX scale": ("QuantizeMX", MX_RESULTS, mx_config(scale_method="MAX"), [MX_INPUT], "EMAX"),
    "MX input": ("QuantizeMX", MX_RESULTS, mx_config(), [MATRIX], "convert to bfloat16"),
    "MX size": ("QuantizeMX", MX_RESULTS, mx_config(), [MX_INPUT[:, :40]], "40 .* multiple of 32"),
    "MX one result": ("QuantizeMX", MX_RESULTS[:1], mx_config(), [MX_INPUT], "two results"),
    "MX words": (
        "QuantizeMX", [((4, 64), np.uint8), MX_RESULTS[1]], mx_config(), [MX_INPUT], "uint32"
    ),
    "three operands": (
        "ScaledMatmul", [((4, 4), F32)], dot_config(), [WORDS, WORDS, SCALES], "takes 4: lhs"
    ),
    "dot of int": (
        "ScaledMatmul", [((4, 4), np.int32)], dot_config(), [WORDS, WORDS, SCALES, SCALES], "int32"
    ),
    "no element type": (
        "ScaledMatmul", [((4, 4), F32)], None, [WORDS, WORDS, SCALES, SCALES], "element_dtype ''"
    ),
    "dot config": (
        "ScaledMatmul", [((4, 4), F32)], '{"scaled_dot_backend_config": 1}',
        [WORDS, WORDS, SCALES, SCALES], "JSON object",
    ),
    "dot dimension": (
        "ScaledMatmul", [((4, 4), F32)], dot_config(lhs_contracting_dimensions=[2]),
        [WORDS, WORDS, SCALES, SCALES], "0 to 1",
    ),
    "dot overlap": (
        "ScaledMatmul", [((4, 4), F32)], dot_config(rhs_batch_dimensions=[1]),
        [WORDS, WORDS, SCALES, SCALES], "not among the batch",
    ),
    "dot sizes": (
        "ScaledMatmul", [((4, 4), F32)], dot_config(),
        [WORDS, WORDS[:, :8], SCALES, SCALES[:, :1]], "sizes must be equal",
    ),
    "dot batch": (
        "ScaledMatmul", [((4,), F32)], dot_config(lhs_batch_dimensions=[0]),
        [WORDS, WORDS, SCALES, SCALES], "sizes must be equal",
    ),
    "dot scale": (
        "ScaledMatmul", [((4, 4), F32)], dot_config(),
        [WORDS, WORDS, SCALES, SCALES[:, :1]], r"scales of the rhs .* shape \(4, 2\)",
    ),
    "dot of odd blocks": (
        "ScaledMatmul", [((4, 4), F32)], dot_config(),
        [WORDS[:, :5], WORDS[:, :5], SCALES, SCALES], "20 elements .* multiple of 32",
    ),
    "dot of vectors": (
        "ScaledMatmul", [((), F32)], dot_config(),
        [WORDS[0], WORDS[0], SCALES[0], SCALES[0]], "two dimensions or more",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name: str) -> None:
    target, results, config, operands, message = BAD[name]
    text = error_of(target, results, config, operands, **TRN3)
    assert re.search(f"^custom call {re.escape(target)} at {line_of_call()} .*{message}", text)


def test_typed_attributes() -> None:
    """The compiler reads a text, JAX's typed calls have a dictionary."""

    def program(x: jax.Array) -> jax.Array:
        return jax.ffi.ffi_call("AwsNeuronSoftmax", jax.ShapeDtypeStruct((3,), F32))(x, dim=0)

    with pytest.raises(
        UnsupportedProgramError, match=r"attributes {dim = 0.*legacy_backend_config"
    ):
        run(program, VECTOR)
