"""Element types and operators: those that the generation has, and that an instruction accepts.

Sources: Neuron docs, "Data types" and error codes NCC_EVRF051, NCC_EVRF052; "NKI API common
fields"; the NKI ISA page of each instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neuronjax.formats import (
    BFLOAT16,
    FLOAT8_E3M4,
    FLOAT8_E4M3,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT8_E8M0FNU,
    FLOAT16,
    FLOAT32,
    TFLOAT32,
    Format,
)
from neuronjax.program.element_types import INTEGERS, PACKED, ElementType, Integer
from neuronjax.program.gpsimd_engine import CustomOp
from neuronjax.program.operators import BITVECTOR, COMPARISONS, REDUCTIONS, UNARY, AluOp
from neuronjax.program.rules.site import Complaint, Site

_NATIVE = tuple(integer for integer in INTEGERS.values() if integer.storage_bits <= 32)
_V2: tuple[ElementType, ...] = (
    FLOAT32,
    TFLOAT32,
    BFLOAT16,
    FLOAT16,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    *_NATIVE,
)
ENGINE_TYPES: Mapping[int, tuple[ElementType, ...]] = {
    2: (*_V2, FLOAT8_E3M4),
    3: (*_V2, FLOAT8_E3M4),
    4: (*_V2, FLOAT8_E4M3FN, FLOAT8_E8M0FNU, *PACKED.values()),
}
"""Generation -> types that engines read and write; 64-bit integers can only be moved."""


def _integers(*names: str) -> tuple[ElementType, ...]:
    return tuple(INTEGERS[name] for name in names)


_INDEX32 = _integers("uint32")
_FLOATS: tuple[ElementType, ...] = (
    BFLOAT16, FLOAT16, FLOAT32, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT8_E4M3FN, FLOAT8_E3M4,
)  # fmt: skip
_NO_32 = (*_FLOATS, *_integers("int8", "uint8", "int16", "uint16"))
_SCALES = (FLOAT8_E8M0FNU, INTEGERS["uint8"])
_FP32: tuple[ElementType, ...] = (FLOAT32,)

FIELD_TYPES: Mapping[tuple[str, str], tuple[ElementType, ...]] = {
    ("tensor_copy_predicated", "predicate"): _integers("uint8", "uint16", "uint32"),
    ("select_reduce", "predicate"): _integers("int8", "uint8", "int16", "uint16"),
    ("select_reduce", "on_true"): _NO_32,
    ("range_select", "on_true"): _FLOATS,
    ("range_select", "bound0"): _FP32,
    ("range_select", "bound1"): _FP32,
    ("tensor_scalar_cumulative", "src"): _NO_32,
    ("tensor_scalar_cumulative", "dst"): _NO_32,
    ("tensor_scalar_cumulative", "imm0"): _FP32,
    ("tensor_scalar_cumulative", "imm1"): _FP32,
    ("activation", "scale"): _FP32,
    ("activation_reduce", "scale"): _FP32,
    ("local_gather", "index"): _integers("uint16"),
    ("nc_n_gather", "indices"): _INDEX32,
    ("nonzero_with_count", "src"): (FLOAT32, INTEGERS["int32"]),
    ("nonzero_with_count", "dst"): _integers("int32"),
    ("sequence_bounds", "dst"): (FLOAT32, INTEGERS["int32"]),
    ("sequence_bounds", "segment_ids"): (FLOAT32, INTEGERS["int32"]),
    ("topk", "src"): (BFLOAT16,),
    ("topk", "values"): (BFLOAT16,),
    ("topk", "indices"): _INDEX32,
    ("nc_find_index8", "dst"): _integers("uint16", "uint32"),
    ("rng", "dst"): _NATIVE,
    ("set_rng_seed", "seed"): (FLOAT32, *_integers("int32", "uint32")),
    ("rand_set_state", "seeds"): _INDEX32,
    ("rand_get_state", "dst"): _INDEX32,
    ("quantize_mx", "src"): (FLOAT16, BFLOAT16),
    ("quantize_mx", "dst"): (PACKED["float8_e5m2_x4"], PACKED["float8_e4m3fn_x4"]),
    ("quantize_mx", "dst_scale"): _SCALES,
    ("dma_gather", "index"): _INDEX32,
    ("dma_scatter", "index"): _INDEX32,
    ("dma_gather_transpose", "index"): _INDEX32,
}
"""Mnemonic, field -> accepted types, where an instruction accepts only some."""

SAME: Mapping[str, tuple[str, str]] = {
    "tensor_copy_predicated": ("src", "dst"),
    "nc_stream_shuffle": ("src", "dst"),
    "nc_n_gather": ("data", "dst"),
    "local_gather": ("src", "dst"),
    "dropout": ("data", "dst"),
    "dma_transpose": ("src", "dst"),
    "dma_gather_transpose": ("table", "dst"),
    "sendrecv": ("src", "dst"),
}
"""Mnemonic -> operands of the same type."""

ANY_TYPE = frozenset({"custom_op"})
"""Mnemonics that accept types with which engines do not compute, since they run C++ code."""

_ARITHMETIC = frozenset(AluOp) - BITVECTOR - {AluOp.BYPASS}
_SUMS = frozenset({AluOp.ADD, AluOp.MINIMUM, AluOp.MAXIMUM})
_CUMULATIVE = _SUMS | {AluOp.SUBTRACT, AluOp.MULTIPLY}
_AFFINE = frozenset({AluOp.MULTIPLY, AluOp.ADD, AluOp.SUBTRACT, AluOp.BYPASS})
_ANY = frozenset(AluOp) - {AluOp.BYPASS}
_MAXIMUM = frozenset({AluOp.MAXIMUM})
_ADD = frozenset({AluOp.ADD})

OPERATORS: Mapping[tuple[str, str], frozenset[AluOp]] = {
    ("tensor_tensor", "op"): _ANY - UNARY,
    ("tensor_scalar", "op0"): _ANY,
    ("tensor_scalar", "op1"): _ANY,
    ("scalar_tensor_tensor", "op0"): _ARITHMETIC,
    ("scalar_tensor_tensor", "op1"): _ARITHMETIC - UNARY,
    ("tensor_reduce", "op"): REDUCTIONS,
    ("tensor_scalar_reduce", "op0"): _ARITHMETIC,
    ("tensor_scalar_reduce", "reduce_op"): _SUMS | {AluOp.MULTIPLY},
    ("tensor_scalar_cumulative", "op0"): _ARITHMETIC,
    ("tensor_scalar_cumulative", "op1"): _CUMULATIVE,
    ("tensor_tensor_scan", "op0"): _ARITHMETIC - UNARY,
    ("tensor_tensor_scan", "op1"): _ARITHMETIC - UNARY,
    ("select_reduce", "reduce_op"): _MAXIMUM,
    ("range_select", "reduce_op"): _MAXIMUM,
    ("range_select", "comp_op0"): COMPARISONS - {AluOp.NOT_EQUAL},
    ("range_select", "comp_op1"): COMPARISONS - {AluOp.NOT_EQUAL},
    ("activation", "reduce_op"): _ADD,
    ("activation_reduce", "reduce_op"): _ADD,
    ("activate2", "op0"): _AFFINE,
    ("activate2", "op1"): _AFFINE - {AluOp.MULTIPLY},
    ("activate2", "reduce_op"): _SUMS | {AluOp.ABS_MAX, AluOp.ABS_MIN},
    ("affine_select", "cmp_op"): COMPARISONS,
    ("dma_compute", "reduce_op"): _ADD,
    ("all_reduce", "op"): _SUMS,
    ("reduce_scatter", "op"): _SUMS,
    ("register_alu", "op"): _ANY - UNARY,
}
"""Mnemonic, field -> accepted operators."""


def element_types(site: Site) -> Iterator[Complaint]:
    """The generation has the type, the field accepts it, and types that must agree do."""
    if not site.core.is_published:
        return
    known = ENGINE_TYPES[site.version]
    mnemonic = site.instruction.mnemonic
    for name, access in site.accesses():
        type_ = access.element_type
        allowed = FIELD_TYPES.get((mnemonic, name))
        if site.is_compute and mnemonic not in ANY_TYPE and type_ not in known:
            yield f"{name} of {type_.name} on {site.core.name}", _names(known)
        elif allowed is not None and type_ not in allowed:
            yield f"{name} of {type_.name}", _names(allowed)
    if isinstance(site.instruction, CustomOp) and not any(
        src.element_type for src in site.instruction.srcs
    ):
        yield "srcs of constants without a type", "a constant with its type, such as #1 as int32"
    operands = dict(site.accesses())
    a, b = (operands.get(name) for name in SAME.get(mnemonic, ("", "")))
    if a and b and a.element_type != b.element_type:
        actual = f"{a.element_type.name} and {b.element_type.name}"
        yield actual, f"one type for {' and '.join(SAME[mnemonic])}"


def _names(types: tuple[ElementType, ...]) -> str:
    return ", ".join(type_.name for type_ in types)


def operators(site: Site) -> Iterator[Complaint]:
    """The field accepts the operator; bit operators take integers and are not mixed with others."""
    mnemonic = site.instruction.mnemonic
    used = []
    for (name, field), allowed in OPERATORS.items():
        op = getattr(site.instruction, field) if name == mnemonic else None
        if op is None:
            continue
        used.append(op)
        if op not in allowed:
            names = ", ".join(sorted(operator.value for operator in allowed))
            yield f"{field} {op.value} of {mnemonic}", names
    bits = [op in BITVECTOR for op in used]
    if any(bits) and not all(bits):
        yield "bit operators with arithmetic ones", "one kind"
    if any(bits):
        for field, access in site.accesses():
            if not isinstance(access.element_type, Integer):
                yield f"{field} of {access.element_type.name} for a bit operator", "integers"


def reduced_types(site: Site) -> Iterator[Complaint]:
    """The result of an accumulator is a floating-point number."""
    result = dict(site.accesses()).get("reduce_res")
    if result is not None and not isinstance(result.element_type, Format):
        yield f"reduce_res of {result.element_type.name}", "a floating-point type"
