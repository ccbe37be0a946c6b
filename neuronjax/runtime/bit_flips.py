"""Injected bit flips: in values in HBM, in SBUF during a run, and in results."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.emulate.core import Emulation, Executed
from neuronjax.errors import ConfigurationError
from neuronjax.faults import BitFlip, format_fault
from neuronjax.host.client import HostClient
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Memory
from neuronjax.program.program import Program
from neuronjax.program.walk import walk
from neuronjax.runtime.engine import EngineClient, EngineExecutable
from neuronjax.runtime.executable import LoadedProgram
from neuronjax.runtime.value import ShardedValue

_log = logging.getLogger("neuronjax.faults")


@dataclass(frozen=True)
class Flips:
    """Flips bits of the values of one client."""

    host: HostClient

    def check(self, fault: BitFlip) -> None:
        """ConfigurationError: that memory is not emulated."""
        emulated = fault.memory != "sbuf" or isinstance(self.host, EngineClient)
        if not emulated and not fault.detected:
            raise ConfigurationError(
                f"fault {format_fault(fault)!r}: only emulated engines have an SBUF; set "
                "NEURONJAX_EXECUTOR=engine, or flip a bit of memory=hbm or memory=link."
            )

    def before(self, fault: BitFlip, program: LoadedProgram, values: list[ShardedValue]) -> None:
        """Flips bits of an argument in the core's HBM, or prepares those of a tile in SBUF."""
        if fault.memory == "hbm":
            self._flip(fault, [value for value in values if value.error is None])
        if fault.memory == "sbuf" and isinstance(program.host, EngineExecutable):
            rank = program.placement.ids.index(fault.core)
            program.host.disturb_next(SbufFlip(fault, rank, program.host.program))

    def after(self, fault: BitFlip, results: list[ShardedValue]) -> None:
        """Flips bits of a result of several cores, as a faulty link would."""
        if fault.memory == "link":
            self._flip(fault, results)

    def _flip(self, fault: BitFlip, values: Sequence[ShardedValue]) -> None:
        sizes = [_bytes_on(value, fault.core) for value in values]
        if not sum(sizes):
            _log.warning("%s finds no value to strike", format_fault(fault))
            return
        chance = random.Random(fault.seed)
        (value,) = chance.choices(values, weights=sizes)
        self._replace(value, value.spec.placement.ids.index(fault.core), fault.bits, chance)

    def _replace(self, value: ShardedValue, index: int, bits: int, chance: random.Random) -> None:
        """Puts another shard into a value: runs that were enqueued before have the old one."""
        shard = value.numpy(index).copy()
        flip_bits(shard, bits, chance)
        placement = value.spec.placement
        own = self.host.placement((placement.ids[index],))
        made = self.host.put(shard, own)
        if len(placement) > 1:
            shards: list[Any] = [value.shard(index) for index in range(len(placement))]
            shards[index] = made
            made = self.host.assemble(value.spec.tensor, placement, shards)
        value.replace(made)


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


def _bytes_on(value: ShardedValue, core: int) -> int:
    return value.spec.shard_bytes if core in value.spec.placement.ids else 0


def flip_bits(array: np.ndarray, bits: int, chance: random.Random) -> None:
    """Flips that many distinct bits of an array, or all of them if it has fewer."""
    flat = array.reshape(-1).view(np.uint8)
    width = 1 if array.dtype == np.bool_ else 8
    total = flat.size * width
    for place in chance.sample(range(total), min(bits, total)):
        flat[place // width] ^= np.uint8(1 << place % width)
