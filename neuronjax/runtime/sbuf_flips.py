"""Injected bit flips in SBUF, while engines run."""

from __future__ import annotations

import random

from neuronjax.emulate.core import Emulation, Executed
from neuronjax.faults import BitFlip
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Memory
from neuronjax.program.program import Program
from neuronjax.program.walk import walk
from neuronjax.runtime.flipping import flip_bits


class SbufFlip:
    """Flips bits of a tile after one of the instructions of a rank, which the seed chooses."""

    def __init__(self, fault: BitFlip, rank: int, program: Program) -> None:
        self._chance = random.Random(fault.seed)
        self._bits, self._rank = fault.bits, rank
        instructions = sum(isinstance(node, Instruction) for _, node in walk(program))
        self._left = self._chance.randint(1, max(1, instructions))

    def __call__(self, emulation: Emulation, executed: Executed) -> None:
        """Called after every executed instruction."""
        if executed.rank != self._rank:
            return
        self._left -= 1
        if self._left:
            return
        inner = emulation.cores[self._rank].memories.inner
        tiles = [name for name, (buffer, _) in inner.items() if buffer.memory is Memory.SBUF]
        if tiles:
            buffer, location = inner[self._chance.choice(sorted(tiles))]
            region = location.bytes_of(buffer)
            flipped = region.copy()
            flip_bits(flipped, self._bits, self._chance)
            region[...] = flipped
