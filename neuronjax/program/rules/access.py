"""Access patterns: their start partitions, numbers of dimensions, and bounds.

Source of all limits: Neuron docs, "Trainium/Inferentia2 architecture guide", accessing SBUF and
PSUM tensors using compute engines.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuronjax.machine.specs import QUADRANT
from neuronjax.program.operand import Access, RegisterOffset
from neuronjax.program.rules.site import Complaint, Site

MAX_DIMS = 4
MAX_SIZE = (1 << 16) - 1
MIN_STRIDE, MAX_STRIDE = -(1 << 15), (1 << 15) - 1


def start_partition(site: Site) -> Iterator[Complaint]:
    """More than 64 partitions start at 0, more than 32 at 0 or 64, others at multiples of 32."""
    if not site.is_compute:
        return
    for name, access in site.accesses():
        if access.buffer.on_chip:
            step = _start_step(access.partitions, site.core.sbuf.partitions)
            start = access.partition + access.buffer.partition
            if start.base % step or any(factor % step for _, factor in start.terms):
                yield (
                    f"{name} has {access.partitions} partitions from partition {start.base}"
                    + "".join(f" + {factor}*{variable}" for variable, factor in start.terms),
                    f"a start that is a multiple of {step}",
                )


def _start_step(count: int, partitions: int) -> int:
    """The number of which the start partition must be a multiple."""
    step = QUADRANT
    while step < count:
        step *= 2
    return min(step, partitions) or 1


def partitions(site: Site) -> Iterator[Complaint]:
    """An access stays within the partitions of its buffer."""
    for name, access in site.accesses():
        trips = site.place.trips
        if not set(access.partition.variables) <= trips.keys():
            continue
        low, high = access.partition.interval(trips)
        if low < 0 or high + access.partitions > access.buffer.partitions:
            yield (
                f"{name} reaches partitions {low} to {high + access.partitions - 1} of"
                f" {access.buffer.name}",
                f"0 to {access.buffer.partitions - 1}",
            )


def writable(site: Site) -> Iterator[Complaint]:
    """Constants keep their values."""
    for use in site.instruction.uses():
        access = use.operand
        if use.role.is_write and isinstance(access, Access) and access.buffer.data is not None:
            yield f"{use.field} writes to the constant {access.buffer.name}", "another tensor"


def bounds(site: Site) -> Iterator[Complaint]:
    """An access stays within one slot of its buffer, in every iteration."""
    for name, access in site.accesses():
        reached = _reached(site, access)
        if reached and (reached[0] < 0 or reached[1] >= access.buffer.elements):
            yield (
                f"{name} reaches elements {reached[0]} to {reached[1]} of {access.buffer.name}",
                f"0 to {access.buffer.elements - 1}",
            )


def _reached(site: Site, access: Access) -> tuple[int, int] | None:
    trips = site.place.trips
    offset = access.offset.base if isinstance(access.offset, RegisterOffset) else access.offset
    return access.bounds(trips) if set(offset.variables) <= trips.keys() else None


def pattern(site: Site) -> Iterator[Complaint]:
    """Up to four free dimensions, their sizes 16 bits unsigned, their strides 16 bits signed; one
    of a single element has no stride."""
    if not site.is_compute:
        return
    for name, access in site.accesses():
        if not access.buffer.on_chip:
            continue
        if len(access.dims) > MAX_DIMS:
            yield f"{name} has {len(access.dims)} free dimensions", f"at most {MAX_DIMS}"
        for dim in access.dims:
            if dim.size > MAX_SIZE:
                yield f"{name} has a dimension of size {dim.size}", f"at most {MAX_SIZE}"
            if dim.size > 1 and not MIN_STRIDE <= dim.stride <= MAX_STRIDE:
                yield f"{name} has a stride of {dim.stride}", f"{MIN_STRIDE} to {MAX_STRIDE}"
