"""Every limit that the reference of `nki.isa` documents (SDK 2.30 and 2.32): a call beyond it is
refused, and says what is allowed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import KernelWarning, NeuronError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored

DTYPES = {
    "f32": nl.float32, "bf": nl.bfloat16, "i32": nl.int32, "u32": nl.uint32, "u16": nl.uint16,
    "u8": nl.uint8, "tf32": nl.tfloat32, "e4m3": nl.float8_e4m3, "e4m3fn": nl.float8_e4m3fn,
    "x4": nl.float8_e4m3fn_x4,
}  # fmt: skip


def t(shape: tuple[int, ...], dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Tensor:
    """A tile that nothing has written."""
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def z(shape: tuple[int, ...], dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Tensor:
    """A tile of zeros in SBUF."""
    tile = t(shape, dtype, buffer)
    nisa.memset(tile, 0)
    return tile


def p(shape: tuple[int, ...], dtype: Any = nl.float32) -> Tensor:
    """A tile of zeros in PSUM."""
    return z(shape, dtype, nl.psum)


def h(shape: tuple[int, ...], dtype: Any = nl.float32) -> Tensor:
    """A tensor of zeros in HBM."""
    there = t(shape, dtype, nl.private_hbm)
    nisa.dma_copy(there, z(shape, dtype))
    return there


def rows(table: Tensor, index: Tensor, **more: Any) -> Tensor:
    """The rows of 8 elements that an index names."""
    return table.ap([[8, 64], [1, 8]], vector_offset=index, indirect_dim=0, **more)


NAMES: dict[str, Any] = {
    **{name: getattr(nisa, name) for name in dir(nisa)},
    **DTYPES,
    "t": t, "z": z, "p": p, "h": h, "rows": rows, "nisa": nisa, "nl": nl, "psum": nl.psum,
    "a": lambda: z((64, 8)), "v": lambda: z((64, 1)), "ge": nl.greater_equal, "lt": nl.less,
    "x32": lambda: z((32, 32), DTYPES["x4"]), "x64": lambda: z((32, 64), DTYPES["x4"]),
    "m": lambda: z((64, 8), nl.uint8), "i": lambda: z((64, 8), nl.int32),
    "s32": lambda: z((32, 32), nl.uint8), "s64": lambda: z((32, 64), nl.uint8),
    "double": nisa.matmul_perf_mode.double_row, "reset": nisa.reduce_cmd.reset_reduce,
    "columns": {"tile_position": (0, 32), "tile_size": (32, 32)},
    "of_128": {"tile_position": (0, 32), "tile_size": (128, 32)},
}  # fmt: skip
"""What the calls below are written with."""

CALLS = """
trn2: dma_copy(z((128, 8)), h((128, 4)))
    allowed: as many elements in src and dst
trn2: dma_copy(a(), rows(a(), z((64, 1), u32)))
    allowed: hbm
trn2: dma_copy(a(), rows(h((64, 8)), z((64, 1), f32)))
    allowed: uint32
trn2: dma_copy(a(), rows(h((64, 8)), z((64, 1), u32), scalar_offset=register_alloc(0)))
    tensor.ap takes scalar_offset or vector_offset, but not both.
trn2: dma_copy(a(), rows(h((64, 8)), h((64, 1), u32)))
    allowed: sbuf
trn2: dma_copy(a(), rows(h((64, 8)), z((64, 1), u32)), dge_mode=dge_mode.hwdge)
    dma_copy with vector_offset takes no dge_mode=hwdge, as GpSimd makes
trn1: dma_copy(a(), h((64, 8)), dge_mode=dge_mode.hwdge)
    allowed: NeuronCore-v3 or later
trn3: dma_copy(a(), h((64, 8)), priority=1, dge_mode=dge_mode.none)
    nki.isa.dma_copy takes no priority with dge_mode=none; leave out one
trn3: dma_copy(a(), h((64, 8)), priority=4)
    allowed: 0 to 3
trn2: dma_copy(a(), h((64, 8)), priority=1)
    allowed: NeuronCore-v4 or later
trn2: dma_copy(a(), h((64, 8)), engine=engine.scalar, dge_mode=dge_mode.swdge)
    dma_copy with dge_mode=swdge cannot be started by engine=scalar;
trn2: dma_copy(a(), h((64, 8)), engine=engine.vector, dge_mode=dge_mode.hwdge)
    dma_copy with dge_mode=hwdge cannot be started by engine=vector;
trn2: dma_copy(p((64, 8)), h((64, 8)))
    allowed: hbm or sbuf
trn2: tensor_copy(a(), p((64, 8)), engine=engine.gpsimd)
    allowed: sbuf
trn1: tensor_copy(a(), a(), engine=engine.scalar)
    allowed: NeuronCore-v3 or later
trn2: tensor_copy(a(), h((64, 8)))
    allowed: sbuf or psum
trn2: tensor_copy(a(), z((64, 4)))
    allowed: 64 × 8, as dst has 8
trn2: tensor_copy(a(), z((32, 8)))
    allowed: 64 × 8, as dst has 8
trn3: memset(t((64, 8), x4), 1)
    nki.isa.memset fills tiles of float8_e4m3fn_x4 with 0 alone; write
trn2: memset(t((64, 8)), 1, engine=engine.scalar)
    allowed: vector, gpsimd
trn2: tensor_copy_predicated(a(), p((64, 8)), p((64, 8), u32))
    allowed: one of them in sbuf
trn2: tensor_copy_predicated(a(), a(), z((64, 8), f32))
    allowed: uint8, uint16, uint32
trn2: tensor_copy_predicated(z((64, 8), bf), a(), m())
    allowed: one type for src and dst
trn2: tensor_copy_predicated(a(), z((64, 4)), m())
    nki.isa.tensor_copy_predicated takes a src of as many elements per
trn1: nc_matmul(p((64, 64)), z((64, 2, 64), e4m3), z((64, 2, 64), e4m3), perf_mode=double)
    allowed: no double row here
trn2: nc_matmul(p((64, 64)), z((64, 2, 64), bf), z((64, 2, 64), bf), perf_mode=double)
    allowed: float8_e4m3, float8_e5m2
trn2: nc_matmul(p((64, 64)), z((64, 3, 64), e4m3), z((64, 3, 64), e4m3), perf_mode=double)
    allowed: 2 first
trn2: nc_matmul(z((64, 64)), z((64, 64)), z((64, 64)))
    allowed: psum
trn2: nc_matmul(p((64, 64)), p((64, 64)), z((64, 64)))
    allowed: sbuf
trn2: nc_matmul(p((64, 64)), z((64, 64)), z((64, 64), bf))
    allowed: float32 and tfloat32 with each other only
trn2: nc_matmul(p((64, 64)), z((64, 64), i32), z((64, 64), i32))
    allowed: float32, tfloat32, bfloat16, float16, float8_e4m3,
trn3: nc_matmul(p((64, 64)), z((64, 64), e4m3), z((64, 64), e4m3fn))
    allowed: one of both FP8 E4M3 formats
trn2: nc_matmul(p((64, 64), bf), z((64, 64), bf), z((64, 64), bf))
    allowed: float32
trn2: nc_matmul(p((64, 64)), z((64, 64)), z((32, 64)))
    allowed: equal, at most 128
trn2: nc_matmul(p((128, 64)), z((64, 129)), z((64, 64)))
    allowed: at most 128
trn2: nc_matmul(t((64, 513), f32, psum), z((64, 64)), z((64, 513)))
    allowed: at most 512
trn2: nc_matmul(p((32, 64)), z((32, 32)), z((32, 64)), tile_position=(16, 0), tile_size=(32, 128))
    allowed: 32, 64 or 128, at a multiple of its size
trn2: nc_matmul(p((32, 64)), z((32, 32)), z((32, 64)), tile_position=(32, 0))
    allowed: both or neither
trn2: nc_matmul(p((32, 64)), z((64, 32)), z((64, 64)), tile_position=(0, 0), tile_size=(32, 128))
    allowed: equal, at most 32
trn2: nc_matmul(p((32, 64)), z((32, 2, 32), e4m3), z((32, 2, 64), e4m3), **of_128, perf_mode=double)
    nki.isa.nc_matmul takes no column tiles with perf_mode=double_row;
trn3: nc_matmul_mx(p((32, 64)), z((32, 32), bf), z((32, 64), bf), s32(), s64())
    allowed: float8_e4m3fn_x4, float8_e5m2_x4, float4_e2m1fn_x4
trn2: nc_matmul_mx(p((32, 64)), x32(), x64(), s32(), s64())
    allowed: NeuronCore-v4 or later
trn3: nc_matmul_mx(p((31, 64)), z((32, 31), x4), x64(), z((32, 31), u8), s64())
    allowed: a multiple of 32, and an even number
trn3: nc_matmul_mx(p((32, 64)), z((48, 32), x4), z((48, 64), x4), z((48, 32), u8), z((48, 64), u8))
    allowed: a multiple of 32, and an even number
trn3: nc_matmul_mx(p((32, 64)), x32(), x64(), s32(), s64(), **columns)
    allowed: row tiles only
trn2: nc_transpose(p((64, 64), bf), z((64, 64)), engine=engine.tensor)
    allowed: float32
trn2: nc_transpose(z((64, 64)), z((64, 64)), engine=engine.vector)
    allowed: at most 32 × 32
trn2: nc_transpose(p((64, 64)), p((64, 64)), engine=engine.tensor)
    allowed: sbuf
trn2: nc_transpose(z((64, 64)), z((64, 64)), engine=engine.tensor)
    allowed: psum
trn2: dma_transpose(z((64, 64), bf), h((64, 64)))
    allowed: one type for src and dst
trn2: dma_transpose(p((64, 64), bf), h((64, 64), bf))
    allowed: sbuf
trn2: dma_transpose(z((128, 32), bf), h((32, 128), bf), dge_mode=dge_mode.hwdge)
    dma_transpose with dge_mode=hwdge takes 16 rows (of 3 and 4
trn2: dma_transpose(z((128, 16)), h((16, 128)), dge_mode=dge_mode.hwdge)
    dma_transpose with dge_mode=hwdge takes 16 rows (of 3 and 4
trn2: dma_transpose(z((128, 16), bf), h((16, 128), bf), dge_mode=dge_mode.swdge)
    dma_transpose without vector_offset takes no dge_mode=swdge; pass
trn2: dma_transpose(z((4, 8, 16), bf), h((16, 8, 4), bf), axes=(1, 2, 0))
    allowed: axes (1, 0), (2, 1, 0) or (3, 1, 2, 0)
trn2: tensor_tensor(a(), p((64, 8)), p((64, 8)), nl.add)
    allowed: one of them in sbuf
trn2: tensor_tensor(a(), p((64, 8)), a(), nl.power)
    allowed: sbuf
trn2: tensor_tensor(a(), a(), a(), nl.bitwise_and)
    allowed: integers
trn2: tensor_tensor(a(), a(), z((32, 8)), nl.add)
    allowed: 64 × 8, as dst has 8
trn2: tensor_tensor(a(), a(), z((64, 4)), nl.add)
    allowed: 64 × 8, as dst has 8
trn2: tensor_scalar(i(), i(), nl.add, 1, op1=nl.bitwise_and, operand1=1)
    allowed: one kind
trn2: tensor_scalar(a(), a(), nl.bitwise_and, 1)
    allowed: integers
trn2: tensor_scalar(a(), a(), nl.add, z((64, 2)))
    allowed: 64 × 1, as dst has 8
trn2: tensor_scalar(a(), a(), nl.add, 1.0, operand1=2.0)
    nki.isa.tensor_scalar takes no operand1 without op1; leave it out, or
trn2: tensor_scalar(i(), i(), nl.bitwise_and, 1, engine=engine.gpsimd)
    allowed: other ones, or vector
trn2: tensor_scalar(a(), a(), nl.maximum, 1.0, engine=engine.scalar)
    allowed: other ones, or vector
trn1: tensor_scalar(a(), a(), nl.add, 1.0, engine=engine.scalar)
    allowed: NeuronCore-v3 or later
trn2: tensor_reduce(v(), nl.add, a(), axis=0)
    cannot reduce axis=0 of a tensor with 2 dimensions; reduce the last
trn2: tensor_reduce(a(), nl.add, z((64, 4, 8)), axis=1)
    cannot reduce axis=1 of a tensor with 3 dimensions; reduce the last
trn2: tensor_reduce(z((64, 2)), nl.add, a(), axis=1)
    allowed: 64 × 1
trn2: tensor_reduce(v(), nl.bitwise_and, a(), axis=1)
    allowed: integers
trn2: tensor_reduce(v(), nl.power, a(), axis=1)
    allowed: add, bitwise_and, bitwise_or, bitwise_xor, logical_and,
trn2: tensor_partition_reduce(z((1, 8)), nl.subtract, a())
    nki.isa.tensor_partition_reduce has no op=nl.subtract.
trn2: tensor_partition_reduce(z((1, 8)), nl.add, p((64, 8)))
    allowed: sbuf
trn2: tensor_scalar_cumulative(a(), a(), nl.add, nl.divide, 1.0)
    nki.isa.tensor_scalar_cumulative takes no op1=<function divide at
trn2: tensor_scalar_cumulative(i(), i(), nl.add, nl.add, 1.0)
    allowed: bfloat16, float16, float32, float8_e4m3, float8_e5m2,
trn2: tensor_scalar_cumulative(a(), a(), nl.bitwise_and, nl.add, 1.0)
    allowed: abs, abs_max, abs_min, add, equal, greater, greater_equal,
trn2: activation(a(), nl.exp, a(), reduce_op=nl.maximum, reduce_res=v(), reduce_cmd=reset)
    allowed: add
trn2: activation(a(), nl.exp, a(), scale=z((64, 1), bf))
    allowed: float32
trn2: activation(a(), nl.exp, a(), bias=t((64, 1), tf32))
    nki.isa.activation takes a bias of any type but tfloat32; make it
trn1: activation(a(), nl.exp, a(), bias=1.0)
    allowed: NeuronCore-v3 or later
trn2: activation(a(), nl.exp, a(), bias=z((32, 1)))
    allowed: 64 × 1, as dst has 8
trn2: activation(a(), nl.exp, z((64, 4)))
    allowed: 64 × 8, as dst has 8
trn2: activation(a(), nl.add, a())
    nki.isa.activation has no op=nl.add.
trn2: activation_reduce(a(), nl.exp, a(), nl.add, z((64, 2)))
    allowed: 64 × 1, as dst has 8
trn2: activate2(a(), nl.exp, a(), 1.0, 0.0, nl.multiply, nl.add)
    allowed: NeuronCore-v4 or later
trn3: activate2(a(), nl.exp, a(), v(), z((64, 1), bf), nl.multiply, nl.add)
    nki.isa.activate2 takes imm0 and imm1 of one type, and these are
trn2: iota(t((64, 8), i32, psum), [[1, 8]])
    allowed: sbuf
trn2: iota(t((64, 8), i32), [[1, 4]])
    allowed: as many elements in pattern and dst
trn2: affine_select(a(), [[1, 8]], 1, p((64, 8)), 0.0)
    allowed: sbuf
trn2: affine_select(a(), [[1, 4]], 1, a(), 0.0)
    allowed: as many elements in pattern and dst
trn2: affine_select(a(), [[1, 8]], 1, a(), 0.0, cmp_op=nl.add)
    allowed: equal, greater, greater_equal, less, less_equal, not_equal
trn2: local_gather(z((8, 16)), z((8, 32)), z((8, 1), u16))
    allowed: partitions in sixteens
trn2: local_gather(z((16, 16)), z((16, 32)), z((16, 1), i32))
    allowed: uint16
trn2: local_gather(z((16, 16), bf), z((16, 32)), z((16, 1), u16))
    allowed: one type for src and dst
trn2: local_gather(z((16, 48)), z((16, 96)), z((16, 1), u16), num_elem_per_idx=3)
    allowed: 1, 2, 4, 8, 16 or 32 elements per index
trn2: local_gather(z((16, 32)), z((16, 32)), z((16, 1), u16), num_valid_indices=32)
    allowed: at most 4096 indices per core, none invented
trn2: local_gather(z((16, 4112), bf), z((16, 32), bf), z((16, 257), u16))
    allowed: at most 4096 indices per core, none invented
trn2: nc_n_gather(a(), a(), i())
    allowed: uint32
trn2: nc_n_gather(z((64, 8), bf), a(), z((64, 8), u32))
    allowed: one type for data and dst
trn2: nc_n_gather(a(), p((64, 8)), z((64, 8), u32))
    allowed: sbuf
trn2: nc_n_gather(a(), a(), z((64, 4), u32))
    allowed: 64 × 8, as dst has 8
trn2: bn_stats(z((64, 6)), z((64, 513)))
    allowed: data of at most 512 elements
trn2: bn_stats(z((64, 5)), a())
    allowed: dst of 6 elements
trn2: bn_aggr(z((64, 2)), a())
    allowed: data in triples
trn2: tensor_tensor_scan(a(), p((64, 8)), p((64, 8)), 0.0, nl.multiply, nl.add)
    allowed: one of them in sbuf
trn2: tensor_tensor_scan(a(), a(), z((64, 4)), 0.0, nl.multiply, nl.add)
    allowed: 64 × 8, as dst has 8
trn2: tensor_tensor_scan(a(), a(), a(), 0.0, nl.bitwise_and, nl.add)
    allowed: abs_max, abs_min, add, equal, greater, greater_equal, less,
trn2: tensor_tensor_scan(a(), a(), a(), z((64, 2)), nl.multiply, nl.add)
    allowed: 64 × 1, as dst has 8
trn2: nc_stream_shuffle(z((32, 8), bf), z((32, 8)), list(range(32)))
    allowed: one type for src and dst
trn2: nc_stream_shuffle(z((32, 8)), z((32, 4)), list(range(32)))
    allowed: as many elements in src as in dst
trn2: nc_stream_shuffle(z((32, 8)), z((32, 8)), list(range(16)))
    allowed: a mask of 32
trn2: nc_stream_shuffle(z((32, 8)), z((32, 8)), [40]*32)
    allowed: a mask of 0 to 31, or 255
trn2: rng(t((64, 8)))
    allowed: int8, uint8, int16, uint16, int32, uint32
trn2: rng(t((64, 8), u32, psum), engine=engine.gpsimd)
    allowed: sbuf
trn2: dropout(z((64, 8), bf), a(), 0.1)
    allowed: one type for data and dst
trn2: set_rng_seed(z((2, 1), u32))
    allowed: one seed
trn2: set_rng_seed(z((1, 1), u16))
    allowed: float32, int32, uint32
trn2: set_rng_seed(h((1, 1), u32))
    allowed: sbuf or psum
trn2: rand_set_state(z((64, 5), u32))
    allowed: 6 words of state on gpsimd
trn2: rand_set_state(z((64, 6), i32))
    allowed: uint32
trn2: rand_get_state(t((64, 24), u32))
    allowed: 6 words of state on gpsimd
trn2: rand_get_state(t((64, 6), u32, psum))
    allowed: sbuf
trn2: exponential(a(), a())
    allowed: NeuronCore-v4 or later
trn3: exponential(a(), z((64, 4)))
    allowed: 64 × 8, as dst has 8
trn2: reciprocal(a(), z((64, 4)))
    allowed: 64 × 8, as dst has 8
trn2: max8(a(), z((64, 7)))
    allowed: src of 8 to 16,384 elements
trn2: max8(z((64, 8), bf), z((64, 16385), bf))
    allowed: src of 8 to 16,384 elements
trn2: max8(z((64, 4)), z((64, 16)))
    allowed: dst of 8 elements
trn2: sequence_bounds(z((2, 2, 8)), z((2, 8)))
    allowed: one partition
trn2: sequence_bounds(z((1, 2, 8), bf), z((1, 8), bf))
    allowed: float32, int32
trn2: scalar_tensor_tensor(a(), p((64, 8)), nl.add, 1.0, nl.add, p((64, 8)))
    allowed: one of them in sbuf
trn2: scalar_tensor_tensor(i(), i(), nl.bitwise_and, 1, nl.bitwise_or, i())
    allowed: abs, abs_max, abs_min, add, equal, greater, greater_equal,
trn2: scalar_tensor_tensor(a(), a(), nl.add, 1.0, nl.add, z((64, 4)))
    allowed: 64 × 8, as dst has 8
trn2: scalar_tensor_tensor(a(), a(), nl.add, z((64, 2)), nl.add, a())
    allowed: 64 × 1, as dst has 8
trn2: tensor_scalar_reduce(i(), i(), nl.bitwise_and, 1, nl.add, v())
    allowed: abs, abs_max, abs_min, add, equal, greater, greater_equal,
trn2: tensor_scalar_reduce(a(), a(), nl.add, 1.0, nl.add, z((64, 2)))
    allowed: 64 × 1, as dst has 8
trn2: dma_compute(h((64, 8)), [h((64, 8)), h((64, 8))], nl.add, unique_indices=False)
    dma_compute takes no unique_indices=False; add what has the same
trn2: dma_compute(h((64, 8)), [h((64, 8)), h((64, 8))], nl.add, scales=[2.0, 1.0])
    scales of dma_compute must be 1.0; scale with tensor_scalar.
trn2: dma_compute(h((64, 8)), [h((64, 8)), h((64, 4))], nl.add)
    allowed: as many elements in each source and dst
trn2: dma_compute(h((64, 8)), [h((64, 8)), h((64, 8))], nl.divide)
    nki.isa.dma_compute takes no reduce_op=<function divide at
trn3: quantize_mx(z((32, 8), x4), z((32, 32)), z((32, 8), u8))
    allowed: float16, bfloat16
trn3: quantize_mx(z((32, 8), x4), p((32, 32), bf), z((32, 8), u8))
    allowed: sbuf
trn3: quantize_mx(z((48, 8), x4), z((48, 32), bf), z((48, 8), u8))
    allowed: partitions in thirty-twos
trn3: quantize_mx(z((32, 8), x4), z((32, 30), bf), z((32, 8), u8))
    allowed: elements in fours
trn2: range_select(a(), a(), ge, lt, v(), v(), reduce_res=v(), on_false_value=0.0)
    allowed: on_false of -3.4028235e+38
trn2: range_select(i(), i(), ge, lt, v(), v())
    allowed: bfloat16, float16, float32, float8_e4m3, float8_e5m2,
trn2: range_select(a(), a(), ge, lt, z((64, 1), bf), v())
    allowed: float32
trn2: range_select(a(), a(), ge, lt, z((64, 2)), v())
    allowed: 64 × 1, as dst has 8
trn2: range_select(a(), a(), nl.add, nl.less, v(), v())
    allowed: equal, greater, greater_equal, less, less_equal
trn2: range_select(a(), a(), ge, lt, v(), v(), reduce_res=v(), reduce_op=nl.add)
    allowed: maximum
trn1: range_select(a(), a(), ge, lt, v(), v())
    allowed: NeuronCore-v3 or later
trn2: select_reduce(a(), m(), a(), 0.0, reduce_res=z((64, 2)), reduce_cmd=reset)
    allowed: 64 × 1, as dst has 8
trn2: select_reduce(a(), m(), a(), 0.0, reduce_res=z((64, 1), i32), reduce_cmd=reset)
    allowed: a floating-point type
trn2: select_reduce(a(), m(), a(), 0.0, reduce_res=v(), reduce_cmd=reset, reduce_op=nl.add)
    allowed: maximum
trn2: select_reduce(a(), z((64, 4), u8), a(), 0.0)
    allowed: 64 × 8, as dst has 8
trn2: nc_find_index8(z((64, 8), u32), z((64, 7)), a())
    allowed: data of 8 to 16,384 elements
trn2: nc_find_index8(z((64, 8), u32), z((64, 16)), z((64, 4)))
    allowed: vals of 8 elements
trn2: nc_find_index8(z((64, 8), f32), z((64, 16)), a())
    allowed: uint16, uint32
trn2: nc_match_replace8(z((64, 16)), z((64, 16)), z((64, 4)), 0.0)
    allowed: vals of 8 elements
trn2: nonzero_with_count(z((128, 8), i32), z((128, 8)))
    allowed: one more element in dst
trn2: nonzero_with_count(z((128, 9)), z((128, 8)))
    allowed: int32
trn2: nonzero_with_count(z((128, 9), i32), z((128, 8), bf))
    allowed: float32, int32
trn1: nonzero_with_count(z((128, 9), i32), z((128, 8)))
    allowed: NeuronCore-v3 or later
trn3: topk(z((16, 8)), z((16, 8), u32), z((16, 64)), 64)
    allowed: bfloat16
trn3: topk(z((16, 2), bf), z((16, 2), u32), z((16, 4), bf), 4)
    allowed: 8 <= n < 65536
trn3: topk(z((8, 8), bf), z((8, 8), u32), z((8, 64), bf), 64)
    allowed: partitions in sixteens
trn3: topk(z((16, 8), bf), z((16, 8), i32), z((16, 64), bf), 64)
    allowed: uint32
trn2: register_load(register_alloc(), z((1, 2), i32))
    allowed: src of one element
trn2: register_load(register_alloc(), z((1, 1)))
    src of register_load is a tensor float32[1, 1] in sbuf, but registers
trn2: register_store(z((1, 2), i32), register_alloc(1))
    allowed: dst of one element
trn2: dropout(i(), i(), z((64, 1), bf))
    takes a prob of float32 for int32
"""
"""Chip, and a call beyond a limit; then what is said."""

LINES = [line.strip() for line in CALLS.strip().split("\n")]
CASES = dict(zip(LINES[::2], LINES[1::2], strict=True))


def traced(case: str) -> None:
    """Traces a kernel with the call of a case."""
    chip, _, call = case.partition(": ")

    def kernel(x: Tensor) -> Tensor:
        eval(call, NAMES)
        return stored(loaded(x))

    nki.jit(kernel).trace(np.zeros((8, 8), np.float32), target=chip)


@pytest.mark.parametrize("case", CASES)
def test_a_documented_limit_is_refused(case: str) -> None:
    with pytest.raises(NeuronError) as caught:
        traced(case)
    assert CASES[case] in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("tensor_scalar(a(), a(), nl.add, z((64, 1), bf))", "documented for operands of float32"),
        (
            "tensor_scalar_reduce(a(), a(), nl.subtract, 1.0, nl.add, v(), reverse0=True)",
            "documented as not supported yet",
        ),
    ],
)
def test_what_published_kernels_do_is_noted(call: str, words: str) -> None:
    with pytest.warns(KernelWarning, match=words):
        traced(f"trn2: {call}")


INDIRECT: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"dtype": np.float32}, "elements of 2 bytes"),
    "rows": ({"rows": 24, "index": (32, 1)}, "rows in sixteens"),
    "few indices": ({"rows": 16, "index": (8, 2)}, "16 to 128 partitions of indices"),
    "odd indices": ({"rows": 16, "index": (24, 1)}, "16 to 128 partitions of indices"),
    "type of indices": ({"of_index": nl.int32}, "indices of uint32"),
    "columns of indices": ({"index": (64, 2)}, "several columns of indices in 128 partitions"),
    "too few": ({"index": (64, 1)}, "an index for each row"),
    "one dimension": ({"index": (128,)}, "indices in two dimensions"),
    "width": ({"rows": 16, "columns": 256, "index": (16, 1)}, "at most 128 elements in the last"),
    "mode": ({"dge_mode": nisa.dge_mode.hwdge}, "takes no dge_mode=hwdge"),
    "generation": ({"target": "trn1"}, "NeuronCore-v3 or later"),
}
"""What is other than in a transpose of 128 rows of 128 elements -> words of what is allowed."""


def transposed(
    rows: int = 128,
    columns: int = 128,
    dtype: Any = ml_dtypes.bfloat16,
    index: tuple[int, ...] = (128, 1),
    of_index: Any = nl.uint32,
    dge_mode: Any = nisa.dge_mode.swdge,
    target: str = "trn2",
) -> None:
    """Traces an indirect transpose."""

    def kernel(x: Tensor) -> Tensor:
        chosen = x.ap(
            [[columns, rows], [1, columns]], vector_offset=z(index, of_index), indirect_dim=0
        )
        result = t((columns, rows), x.dtype)
        nisa.dma_transpose(result, chosen, axes=(1, 0), dge_mode=dge_mode)
        return stored(result)

    nki.jit(kernel).trace(np.zeros((256, columns), dtype), target=target)


def test_an_indirect_transpose_within_all_limits() -> None:
    transposed()
    transposed(rows=256, index=(128, 2))


@pytest.mark.parametrize("case", INDIRECT)
def test_limits_of_indirect_transposes(case: str) -> None:
    given, words = INDIRECT[case]
    with pytest.raises(NeuronError) as caught:
        transposed(**given)
    assert words in str(caught.value)
