"""What the runtime takes of a core's HBM beside tensors, by documented rules and public reports.

The Neuron runtime's guide (neuron-runtime/explore/device-memory.rst) has the categories and what
they depend on: pages of the scratchpad, rings of DMA descriptors for inputs and outputs and for
spills, none where engines generate descriptors (DGE), code, and collectives. It has few numbers;
the others are those of two out-of-memory reports of transformers-neuronx (GiB):

* Llama-2-7B over two cores of inf2, 4 rows of 2,048 slots (thread 49): rings 6.52 for ten programs
  and 8.2 of tensors, code 0.23, scratchpad 0.5, collectives 0.51.
* Llama-3-70B over twelve cores of inf2 (thread 92), while its second program is loaded: rings 1.47
  for 13.2 of tensors, code 0.47, scratchpad 0.5, collectives 0.36.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from neuronjax.machine.specs import KIB, MIB, CoreSpec

CODE, RINGS, COLLECTIVES, PAGES = KINDS = (
    "code", "dma rings", "collectives", "scratchpad pages",
)  # fmt: skip
"""Categories, microcode aside. `scratchpad pages`: what pages have beyond the scratch in them."""

DESCRIPTOR_BYTES = 32
"""Two descriptors of 16 bytes for each run of bytes: one reads it, one writes it."""
IO_RUN_BYTES = 384
"""The run of an input or output that a pair of descriptors moves: between rows of 256 bytes and the
512 from which transfers are efficient. Both reports follow from it within a tenth."""
SPILL_RUN_BYTES = 4 * KIB
"""The run of a value that is spilled or reloaded: a packet, as its place can be chosen."""
RINGS_RANGE = (2 / 3, 1.5)
"""The factors on rings if all runs had 576, or 256 bytes."""
GENERATED_SHARE, GENERATED_RANGE = 0.25, (0.0, 2.0)
"""The share of descriptors that stay in rings where engines generate descriptors, which no report
tells, and its range: 32 billion parameters over four logical cores of trn2, which are served there
with 4,096 slots, would not fit if it were a half."""
INSTRUCTION_BYTES, CODE_RANGE = 58, (0.5, 2.0)
"""The code of a hardware instruction: 45 bytes and more by the first report, 75 by the second, over
the instructions of their programs here."""
MOST_INSTRUCTIONS = 5_000_000
"""Instructions of a program above which the Neuron compiler gives up. Shorter programs beside the
longest are small: together they count no more."""
COLLECTIVE_BYTES, COLLECTIVE_RANGE = 440 * MIB, (0.83, 1.18)
"""Buffers of all collectives of a core: the reports have 518 and 367 MiB."""
PAGE_BYTES, SMALL_PAGE_BYTES = 512 * MIB, 64 * MIB
"""Pages of the scratchpad as the guide has them; contiguous ones are smaller."""


class Bytes(NamedTuple):
    """A number of bytes, and its range."""

    nbytes: int
    low: int
    high: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What the programs of a core have. Bytes and instructions are those of one of them."""

    #: Arguments, results and constants.
    io_bytes: float
    #: The scratchpad, and the values that go through it.
    scratch_bytes: float = 0.0
    spilled_bytes: float = 0.0
    instructions: float = 0.0
    has_collectives: bool = False
    #: Programs with these arguments that are loaded beside each other, such as buckets of lengths;
    #: of one that is being loaded, a part.
    programs: float = 1


def runtime_memory(core: CoreSpec, demand: Demand) -> Mapping[str, Bytes]:
    """The bytes of each category on a core that are not nothing."""
    instructions = min(demand.programs * demand.instructions, MOST_INSTRUCTIONS)
    taken = {
        CODE: _between(INSTRUCTION_BYTES * instructions, CODE_RANGE),
        RINGS: _rings(core, demand),
        COLLECTIVES: _between(demand.has_collectives * COLLECTIVE_BYTES, COLLECTIVE_RANGE),
        PAGES: _pages(demand.scratch_bytes),
    }
    return {kind: share for kind, share in taken.items() if share.high}


def _between(nbytes: float, factors: tuple[float, float]) -> Bytes:
    low, high = factors
    return Bytes(round(nbytes), round(low * nbytes), round(high * nbytes))


def _rings(core: CoreSpec, demand: Demand) -> Bytes:
    """Shorter programs spill little: only those of the longest count."""
    runs = demand.programs * demand.io_bytes / IO_RUN_BYTES
    runs += 2 * demand.spilled_bytes / SPILL_RUN_BYTES
    nbytes = DESCRIPTOR_BYTES * runs
    if core.descriptor_engines:
        return _between(GENERATED_SHARE * nbytes, GENERATED_RANGE)
    return _between(nbytes, RINGS_RANGE)


def _pages(nbytes: float) -> Bytes:
    rest, least = (-nbytes % page for page in (PAGE_BYTES, SMALL_PAGE_BYTES))
    return Bytes(math.ceil(rest), math.ceil(least), math.ceil(rest))
