"""`neuronxcc.nki.compiler`: where tiles lie and what the compiler does, which is left to the
emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuronjax.nki.constants import MemoryRegion


@dataclass(frozen=True)
class Allocator:
    """Places in a memory, as `buffer=ncc.sbuf.mod_alloc(base_addr=0)` names them."""

    region: MemoryRegion

    def alloc(self, place: Callable[..., object]) -> MemoryRegion:
        """Places that a function gives."""
        return self.region

    def mod_alloc(self, **options: object) -> MemoryRegion:
        """Places that tiles take in turn."""
        return self.region

    def auto_alloc(self) -> MemoryRegion:
        """Places that the compiler chooses."""
        return self.region


sbuf, psum = Allocator(MemoryRegion.sbuf), Allocator(MemoryRegion.psum)


def _kept(function: Callable[..., Any] | None = None, **options: object) -> Any:
    """Decorates a kernel, which stays as it is."""
    return _kept if function is None else function


enable_stack_allocator = skip_middle_end_transformations = force_auto_alloc = _kept
