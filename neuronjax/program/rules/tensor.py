"""The Tensor engine: shapes, PSUM banks and types of products and transposes.

Sources: NKI ISA nc_matmul, nc_matmul_mx, nc_transpose; Neuron docs, architecture guides.
"""

from __future__ import annotations

from collections.abc import Iterator

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
)
from neuronjax.machine.specs import QUADRANT
from neuronjax.program.element_types import INTEGERS, PACKED, ElementType, bytes_of
from neuronjax.program.operand import Access, RegisterOffset
from neuronjax.program.operators import PerformanceMode
from neuronjax.program.rules.site import Complaint, Site
from neuronjax.program.tensor_engine import Matmul, MatmulMX, TensorTranspose
from neuronjax.program.vector_engine import VectorTranspose

_WIDE = (FLOAT32, TFLOAT32)
_NARROW: tuple[ElementType, ...] = (BFLOAT16, FLOAT16, FLOAT8_E4M3, FLOAT8_E5M2)
#: By generation. FP8 e3m4: Trainium2 architecture guide.
_OPERANDS: dict[int, tuple[ElementType, ...]] = {
    2: (*_WIDE, *_NARROW, FLOAT8_E3M4),
    3: (*_WIDE, *_NARROW, FLOAT8_E3M4),
    4: (*_WIDE, *_NARROW, FLOAT8_E4M3FN),
}
_DOUBLE_ROW: dict[int, tuple[ElementType, ...]] = {
    3: (FLOAT8_E4M3, FLOAT8_E5M2),
    4: (FLOAT8_E4M3, FLOAT8_E5M2, FLOAT8_E4M3FN),
}
_RESULTS: dict[int, tuple[ElementType, ...]] = {
    2: (FLOAT32,),
    3: (FLOAT32,),
    4: (FLOAT32, BFLOAT16),
}
_SCALES: tuple[ElementType, ...] = (FLOAT8_E8M0FNU, INTEGERS["uint8"])
VECTOR_TRANSPOSE = 32
"""Rows and columns of a transpose on the Vector engine."""


def matmul_shape(site: Site) -> Iterator[Complaint]:
    """The contraction lies on partitions, and the operands are no larger than the array."""
    product = site.instruction
    if not isinstance(product, Matmul | MatmulMX):
        return
    still, moving, dst = product.stationary, product.moving, product.dst
    rows, columns = product.tile_size or (site.core.tensor.rows, site.core.tensor.columns)
    if not still.partitions == moving.partitions <= rows:
        actual = f"stationary has {still.partitions} partitions, moving {moving.partitions}"
        yield actual, f"equal, at most {rows}"
    double = isinstance(product, Matmul) and product.perf_mode is PerformanceMode.DOUBLE_ROW
    for name, access in (("stationary", still), ("moving", moving)):
        if double and access.sizes[:1] != (2,):
            yield f"{name} of double row has free sizes {access.sizes}", "2 first"
            return
    m, n = (access.free_elements // (2 if double else 1) for access in (still, moving))
    if m > columns:
        yield f"stationary has {m} free elements", f"at most {columns}"
    most = _most_moving(site, dst)
    if n > most:
        yield f"moving has {n} free elements", f"at most {most}"
    if (dst.partitions, dst.free_elements) != (m, n):
        actual = f"dst has {dst.partitions} partitions of {dst.free_elements} elements"
        yield actual, f"{m} of {n}"
    if isinstance(product, MatmulMX) and (still.partitions % QUADRANT or m % 2):
        actual = f"MX stationary has {still.partitions} partitions of {m} elements"
        yield actual, f"a multiple of {QUADRANT}, and an even number"


def _most_moving(site: Site, dst: Access) -> int:
    """A PSUM bank of float32; from NeuronCore-v4 on, all of PSUM in the type of the result."""
    psum = site.core.psum
    if site.version < 4:
        return psum.bank_bytes // bytes_of(FLOAT32)
    return psum.partition_bytes // bytes_of(dst.element_type)


def tile(site: Site) -> Iterator[Complaint]:
    """A tile of the array has 64 rows (32 from v3 on) and starts at a multiple of its size."""
    product = site.instruction
    if not isinstance(product, Matmul | MatmulMX):
        return
    size, position = product.tile_size, product.tile_position
    if (size is None) != (position is None):
        yield f"tile_size {size} with tile_position {position}", "both or neither"
    if size is None or position is None:
        return
    spec = site.core.tensor
    smallest = 64 if site.version == 2 else 32
    for name, part, start, whole in (
        ("row", size[0], position[0], spec.rows),
        ("column", size[1], position[1], spec.columns),
    ):
        if part not in {smallest, 64, whole} or start % part or start + part > whole:
            actual = f"{name} tile of {part} at {start}"
            yield actual, f"{smallest}, 64 or {whole}, at a multiple of its size"
    if isinstance(product, MatmulMX) and (size[1], position[1]) != (spec.columns, 0):
        yield f"column tile of {size[1]} at {position[1]} for MX", "row tiles only"


def psum_bank(site: Site) -> Iterator[Complaint]:
    """Before NeuronCore-v4, the result of a product lies in one PSUM bank."""
    product = site.instruction
    if not isinstance(product, Matmul | TensorTranspose) or site.version >= 4:
        return
    dst, bank = product.dst, site.core.psum.bank_bytes
    width = bytes_of(dst.buffer.dtype)
    low, high = (end * width for end in dst.reach)
    length = high - low + width
    if length > bank:
        yield f"dst spans {length} bytes of a partition", f"one bank of {bank} bytes"
        return
    trips = site.place.trips
    unknown = isinstance(dst.offset, RegisterOffset) or not dst.variables <= trips.keys()
    if unknown or isinstance(dst.offset, RegisterOffset):
        return
    starts = {((dst.buffer.address or 0) + dst.offset.base * width + low) % bank}
    steps = [(factor * width, trips[name]) for name, factor in dst.offset.terms]
    steps.append((dst.buffer.stride, dst.buffer.slots))
    for step, count in steps:
        starts = {(start + step * k) % bank for start in starts for k in range(min(count, bank))}
    worst = max(starts)
    if worst + length > bank:
        yield f"dst begins {worst} bytes into a bank and has {length}", f"one bank of {bank} bytes"


def matmul_types(site: Site) -> Iterator[Complaint]:
    """The types of both operands of a product may be combined, and the result's type is allowed."""
    product = site.instruction
    if not isinstance(product, Matmul):
        return
    pair = (product.stationary.element_type, product.moving.element_type)
    actual = f"{pair[0].name} with {pair[1].name}"
    double = product.perf_mode is PerformanceMode.DOUBLE_ROW
    allowed = (_DOUBLE_ROW if double else _OPERANDS).get(site.version, ())
    if not set(pair) <= set(allowed):
        yield actual, ", ".join(type_.name for type_ in allowed) or "no double row here"
    if len({type_ in _WIDE for type_ in pair}) > 1:
        yield actual, "float32 and tfloat32 with each other only"
    if {FLOAT8_E4M3, FLOAT8_E4M3FN} == set(pair):
        yield actual, "one of both FP8 E4M3 formats"
    results = _RESULTS.get(site.version, ())
    if product.is_transpose:
        if double:
            yield "transpose in double row", "one of both"
        narrow = any(type_.storage_bits == 8 for type_ in pair)
        results = (*results, *pair, *((FLOAT16, BFLOAT16) if narrow else ()))
    if product.dst.element_type not in results:
        yield f"dst of {product.dst.element_type.name}", ", ".join(type_.name for type_ in results)


def matmul_mx_types(site: Site) -> Iterator[Complaint]:
    """Packed operands, E8M0 scales, float32 or bfloat16 results."""
    product = site.instruction
    if not isinstance(product, MatmulMX):
        return
    expected: dict[str, tuple[ElementType, ...]] = {
        "stationary": tuple(PACKED.values()),
        "moving": tuple(PACKED.values()),
        "stationary_scale": _SCALES,
        "moving_scale": _SCALES,
        "dst": (FLOAT32, BFLOAT16),
    }
    for name, access in site.accesses():
        if access.element_type not in expected[name]:
            allowed = ", ".join(type_.name for type_ in expected[name])
            yield f"{name} of {access.element_type.name}", allowed


def transposes(site: Site) -> Iterator[Complaint]:
    """A transpose swaps partitions and elements, keeps the type, and fits the array or 32 × 32."""
    instruction = site.instruction
    if not isinstance(instruction, TensorTranspose | VectorTranspose):
        return
    data, dst = instruction.data, instruction.dst
    on_array = isinstance(instruction, TensorTranspose)
    most = site.core.tensor.rows if on_array else VECTOR_TRANSPOSE
    if max(data.partitions, data.free_elements) > most:
        yield f"data of {data.partitions} × {data.free_elements}", f"at most {most} × {most}"
    if (dst.partitions, dst.free_elements) != (data.free_elements, data.partitions):
        actual = f"dst of {dst.partitions} × {dst.free_elements}"
        yield actual, f"{data.free_elements} × {data.partitions}"
    width = data.element_type.storage_bits
    if on_array and width == 8:
        # Trainium2 architecture guide: FP8 comes out as 16-bit elements with a zero upper byte.
        if dst.element_type.storage_bits != 16:
            yield f"dst of {dst.element_type.name} for 8-bit data", "16-bit elements"
    elif dst.element_type != data.element_type:
        yield f"dst of {dst.element_type.name}", data.element_type.name
