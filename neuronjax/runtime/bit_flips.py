"""Injected bit flips: in values in HBM, in SBUF during a run, and in results."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neuronjax.errors import ConfigurationError
from neuronjax.faults import BitFlip, format_fault
from neuronjax.host.client import HostClient
from neuronjax.lazy import Lazy
from neuronjax.runtime.executable import LoadedProgram
from neuronjax.runtime.flipping import flip_bits
from neuronjax.runtime.value import ShardedValue

if TYPE_CHECKING:
    from neuronjax.runtime import engine, sbuf_flips
else:
    engine = Lazy("neuronjax.runtime.engine")
    sbuf_flips = Lazy("neuronjax.runtime.sbuf_flips")

_log = logging.getLogger("neuronjax.faults")


@dataclass(frozen=True)
class Flips:
    """Flips bits of the values of one client."""

    host: HostClient

    def check(self, fault: BitFlip) -> None:
        """ConfigurationError: that memory is not emulated."""
        emulated = fault.memory != "sbuf" or isinstance(self.host, engine.EngineClient)
        if not emulated and not fault.detected:
            raise ConfigurationError(
                f"fault {format_fault(fault)!r}: only emulated engines have an SBUF; set "
                "NEURONJAX_EXECUTOR=engine, or flip a bit of memory=hbm or memory=link."
            )

    def before(self, fault: BitFlip, program: LoadedProgram, values: list[ShardedValue]) -> None:
        """Flips bits of an argument in the core's HBM, or prepares those of a tile in SBUF."""
        if fault.memory == "hbm":
            self._flip(fault, [value for value in values if value.error is None])
        if fault.memory == "sbuf" and isinstance(program.host, engine.EngineExecutable):
            rank = program.placement.ids.index(fault.core)
            program.host.disturb_next(sbuf_flips.SbufFlip(fault, rank, program.host.program))

    def after(self, fault: BitFlip, results: list[ShardedValue]) -> None:
        """Flips bits of a result of several cores, as a faulty link would."""
        if fault.memory == "link":
            self._flip(fault, results)

    def _flip(self, fault: BitFlip, values: Sequence[ShardedValue]) -> None:
        sizes = [_bytes_on(value, fault.core) for value in values]
        if not sum(sizes):
            _log.warning("%s finds no value to change", format_fault(fault))
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


def _bytes_on(value: ShardedValue, core: int) -> int:
    return value.spec.shard_bytes if core in value.spec.placement.ids else 0
