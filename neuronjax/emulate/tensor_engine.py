"""How instructions of the Tensor engine execute: products accumulated in FP32.

The array's order of summation is not documented; sums are those of a float32 matrix product.
"""

from __future__ import annotations

import numpy as np

from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.emulate.frame import Values
from neuronjax.emulate.rule import Rules
from neuronjax.emulate.unit import Array, Part, Read, Run, Unit
from neuronjax.formats import FLOAT8_E8M0FNU
from neuronjax.machine.specs import MX_BLOCK, MX_WORD, QUADRANT
from neuronjax.program.element_types import Packed
from neuronjax.program.operand import Access
from neuronjax.program.operators import PerformanceMode
from neuronjax.program.tensor_engine import Matmul, MatmulMX, TensorTranspose

_SCALED = MX_BLOCK // MX_WORD
"""Number of partitions that share a scale."""


def product(stationary: Array, moving: Array) -> Array:
    """stationary [K, M], moving [K, N], float32 -> stationaryᵀ @ moving [M, N], float32."""
    return np.matmul(stationary.T, moving)


def matmul(instruction: Matmul, unit: Unit) -> Run:
    """dst = or += stationaryᵀ @ moving."""
    if instruction.is_transpose:
        return _transposing(instruction, unit)
    rows = 2 if instruction.perf_mode is PerformanceMode.DOUBLE_ROW else 1
    still, moving = (
        _contracted(unit, access, rows) for access in (instruction.stationary, instruction.moving)
    )
    return _accumulating(instruction, unit, lambda values: product(still(values), moving(values)))


def _contracted(unit: Unit, access: Access, rows: int) -> Read:
    """[K, free] of an operand; with double row the first free dimension is contracted as well."""
    read, free = unit.numbers(access), access.free_elements // rows
    return lambda values: read(values).reshape(-1, free)


def _accumulating(instruction: Matmul | MatmulMX, unit: Unit, compute: Read) -> Run:
    """Writes the results of `compute`, or adds them to dst."""
    starts, dst = unit.frame.flag(instruction.start), unit.part(instruction.dst)

    def run(values: Values) -> None:
        write = dst.write if starts(values) else dst.add
        write(values, compute(values))

    return run


def _transposing(instruction: Matmul, unit: Unit) -> Run:
    """Permutes the stationary operand by the moving one, bit by bit."""
    still, moving, dst = (
        unit.bits(instruction.stationary),
        unit.numbers(instruction.moving),
        unit.part(instruction.dst),
    )

    def run(values: Values) -> None:
        chosen = np.argmax(moving(values) != 0, axis=0)
        dst.move(values, still(values)[chosen].T)

    return run


def unpacked(words: Array, dtype: Packed) -> Array:
    """Words [K/4, F] -> their elements as float32 [K/4, 4, F], the low bits first."""
    bits = dtype.element.bits
    mask = words.dtype.type((1 << bits) - 1)
    parts = [(words >> words.dtype.type(bits * place)) & mask for place in range(dtype.count)]
    codes = np.stack(parts, axis=1).astype(np.uint8)
    return codes.view(numpy_dtype(dtype.element)).astype(np.float32)


def scale_rows(partitions: int) -> Array:
    """The row of scales of each partition: four rows per quadrant of 32, one per 8 partitions."""
    partition = np.arange(partitions)
    return partition // QUADRANT * QUADRANT + partition % QUADRANT // _SCALED


def _scales(codes: Array) -> Array:
    return codes.view(numpy_dtype(FLOAT8_E8M0FNU)).astype(np.float32)


class _Scaled:
    """A packed operand [K/4, F] with its scales, as float32 [K, F]."""

    def __init__(self, unit: Unit, data: Access, scale: Access) -> None:
        assert isinstance(data.element_type, Packed)
        self._dtype: Packed = data.element_type
        self._words = unit.bits(data)
        self._scales: Part = unit.part(scale)
        self._rows = scale_rows(data.partitions)
        self._used = np.zeros((scale.partitions, 1), bool)
        self._used[np.unique(self._rows)] = True

    def __call__(self, values: Values) -> Array:
        elements = unpacked(self._words(values), self._dtype)
        scales = _scales(self._scales.bits(values, self._used)[self._rows])
        return (elements * scales[:, None, :]).reshape(-1, elements.shape[-1])


def matmul_mx(instruction: MatmulMX, unit: Unit) -> Run:
    """dst = or += stationaryᵀ @ moving of block-scaled operands."""
    still = _Scaled(unit, instruction.stationary, instruction.stationary_scale)
    moving = _Scaled(unit, instruction.moving, instruction.moving_scale)
    return _accumulating(instruction, unit, lambda values: product(still(values), moving(values)))


def tensor_transpose(instruction: TensorTranspose, unit: Unit) -> Run:
    """dst = dataᵀ; 8-bit elements come out as 16-bit ones with a zero upper byte."""
    dst = unit.part(instruction.dst)
    if not unit.spec.moves_bits:
        numbers = unit.numbers(instruction.data)

        def spread(values: Values) -> None:
            data = numbers(values)
            dst.write(values, product(data, np.eye(len(data), dtype=np.float32)))

        return spread
    bits = unit.bits(instruction.data)
    word, wider = (
        np.dtype(f"u{unit.dtype(a).itemsize}") for a in (instruction.data, instruction.dst)
    )
    target = unit.dtype(instruction.dst)

    def move(values: Values) -> None:
        words = np.ascontiguousarray(bits(values).T).view(word)
        dst.move(values, words.astype(wider, copy=False).view(target))

    return move


RULES: Rules = {Matmul: matmul, MatmulMX: matmul_mx, TensorTranspose: tensor_transpose}
"""Instruction -> rule that turns it into a function."""
