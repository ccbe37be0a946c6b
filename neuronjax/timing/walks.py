"""What access patterns mean for time: elements in a partition, slow strides, contiguous runs."""

from __future__ import annotations

import math

from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Access, Memory
from neuronjax.timing.platform import Platform


def minor_stride(access: Access) -> int:
    """Elements between neighbours of the innermost dimension; 1 for a single element."""
    dims = [dim for dim in access.dims if dim.size > 1]
    return abs(dims[-1].stride) if dims else 1


def is_dense(access: Access) -> bool:
    """Whether the innermost dimension is contiguous."""
    return minor_stride(access) == 1


def is_narrow(access: Access, platform: Platform) -> bool:
    """Whether the Vector engine's performance modes hold for elements: those of two bytes, and
    those for which the chip's record has a wider data path."""
    element_type = access.element_type
    return bytes_of(element_type) == 2 or element_type.name in platform.core.vector.wide


def streamed(access: Access, platform: Platform) -> float:
    """Elements of one partition; twice as many where strides halve the interface's speed."""
    stride = minor_stride(access) * bytes_of(access.element_type)
    slow = access.memory is Memory.SBUF and stride > platform.timings.engines.dense_stride_bytes
    return access.free_elements * (2 if slow else 1)


def longest(platform: Platform, *accesses: Access | None) -> float:
    """Elements that the longest of some accesses streams."""
    return max(
        (streamed(access, platform) for access in accesses if access is not None), default=0.0
    )


def run_elements(access: Access) -> int:
    """Elements that lie side by side, in walking order: what one descriptor element can move."""
    run = 1
    for dim in reversed(access.dims):
        if dim.size == 1:
            continue
        if dim.stride != run:
            break
        run *= dim.size
    return run


def runs(access: Access) -> tuple[int, int]:
    """Number of contiguous runs in all partitions, and bytes of each."""
    run = run_elements(access)
    return math.ceil(access.elements / run), run * bytes_of(access.element_type)
