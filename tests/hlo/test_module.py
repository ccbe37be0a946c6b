"""Reading modules: signature, donation, memory kinds, and what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from neuronjax.errors import CompileError, UnsupportedProgramError
from neuronjax.hlo import module as hlo
from neuronjax.hlo.module import ELEMENT_TYPES, Argument, Result, Signature, TensorSpec


def read(text: str) -> Signature:
    with hlo.context():
        return hlo.signature(hlo.load(text.encode()))


def main(arguments: str, results: str, body: str) -> str:
    return f"module @program {{ func.func public @main({arguments}) -> ({results}) {{ {body} }} }}"


def test_signature() -> None:
    found = read(
        main(
            "%a: tensor<2x3xf32>, %b: tensor<i4>, %c: tensor<0xcomplex<f32>>",
            "tensor<0xcomplex<f32>>, tensor<2x3xf32>",
            "return %c, %a : tensor<0xcomplex<f32>>, tensor<2x3xf32>",
        )
    )
    f32, c64 = np.dtype(np.float32), np.dtype(np.complex64)
    assert found == Signature(
        name="program",
        arguments=(
            Argument(TensorSpec((2, 3), f32)),
            Argument(TensorSpec((), np.dtype(ml_dtypes.int4))),
            Argument(TensorSpec((0,), c64)),
        ),
        results=(Result(TensorSpec((0,), c64)), Result(TensorSpec((2, 3), f32))),
    )
    assert found.argument_types == tuple(argument.type for argument in found.arguments)
    assert found.result_types == (TensorSpec((0,), c64), TensorSpec((2, 3), f32))


@pytest.mark.parametrize(
    ("first", "second", "donated"),
    [
        ("", "", ()),
        ("{tf.aliasing_output = 0 : i32}", "", (0,)),
        ("", "{jax.buffer_donor = true}", (1,)),
        ("{tf.aliasing_output = 0 : i32}", "{jax.buffer_donor = true}", (0, 1)),
        ('{mhlo.sharding = "{replicated}"}', "", ()),
    ],
)
def test_donation(first: str, second: str, donated: tuple[int, ...]) -> None:
    text = main(
        f"%a: tensor<4xf32> {first}, %b: tensor<4xf32> {second}",
        "tensor<4xf32>",
        "return %a : tensor<4xf32>",
    )
    assert read(text).donated == donated


def test_memory_kinds_of_results() -> None:
    text = main(
        "%a: tensor<4xf32>",
        'tensor<4xf32> {mhlo.memory_kind = "pinned_host"}, tensor<4xf32>',
        "return %a, %a : tensor<4xf32>, tensor<4xf32>",
    )
    assert [result.memory_kind for result in read(text).results] == ["pinned_host", None]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("not a module", CompileError, "not a StableHLO module"),
        ("", CompileError, "main"),
        ("module @m {}", CompileError, "no function named 'main'"),
        (
            main("%a: tensor<?xf32>", "tensor<?xf32>", "return %a : tensor<?xf32>"),
            UnsupportedProgramError,
            r"\[NCC_EMOD025\] main has a dynamic shape, tensor<\?xf32>; .*pad inputs",
        ),
        (
            main("%a: tensor<2xi3>", "tensor<2xi3>", "return %a : tensor<2xi3>"),
            UnsupportedProgramError,
            "unknown element type i3",
        ),
        (
            main("%a: i32", "i32", "return %a : i32"),
            UnsupportedProgramError,
            "argument or result of type",
        ),
    ],
)
def test_refused(text: str, kind: type[CompileError], message: str) -> None:
    with pytest.raises(kind, match=message):
        read(text)


def test_damaged_bytecode_is_refused() -> None:
    with hlo.context():
        code = hlo.dump(
            hlo.load(main("%a: tensor<f32>", "tensor<f32>", "return %a : tensor<f32>").encode())
        )
        for cut in range(1, len(code) - 1, 7):
            with pytest.raises(CompileError):
                hlo.signature(hlo.load(code[:cut]))


def test_module_survives_the_way_through_bytes() -> None:
    text = main("%a: tensor<4xf32>", "tensor<4xf32>", "return %a : tensor<4xf32>")
    with hlo.context():
        module = hlo.load(text.encode())
        assert str(hlo.load(hlo.dump(module))) == str(module)


BITS = {"i1": 8, "i2": 2, "ui2": 2, "i4": 4, "ui4": 4, "f4E2M1FN": 4}


@pytest.mark.parametrize("element", ELEMENT_TYPES)
def test_bytes_on_the_device(element: str) -> None:
    """Types of less than a byte are packed; all others have the size of their numpy dtype."""
    spec = TensorSpec((5, 3), ELEMENT_TYPES[element])
    digits = element.removeprefix("complex<").lstrip("uibf").split("E")[0].rstrip(">")
    bits = BITS.get(element, int(digits) * (2 if element.startswith("complex") else 1))
    assert spec.nbytes == -(-15 * bits // 8)
