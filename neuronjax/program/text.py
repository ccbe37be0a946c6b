"""Programs as text, and back: ``parse(format(program)) == program``.

    program "double" target trainium2 lnc 1 {
      register $row limit 7
      hbm %x : float32[8, 512] argument @0
      kernel "double" operations ("add") sources ("train.py:12") {
        semaphore !loaded
        sbuf %tile : float32[1, 512] slots 2 @0
        loop i in 8 {
          dma_copy dst=%tile{i}[0; 1:512] src=%x[512*i; 1:512] signals=(!loaded += 16)
          tensor_scalar dst=%tile{i}[0; 1:512] … waits=(!loaded >= 16*i + 16)
        }
      }
    }

An access is ``%buffer{slot}<partition, partitions>[offset; stride:size, …] as dtype``; slot and
partitions are left out at slot 0, partition 0 and one partition. Offsets, slots, partitions and
counts are affine: ``128*i + 5``; an offset may begin with a register, ``64*$row + 5``. Constants
are ``#1.0``. ``register $rounds limit 127 usual 3`` is timed as if it were at most 3. Fields at
their defaults are left out. Flags are ``true``, ``first(k)``, ``last(k)``.
``kernel "next" overlaps 1 { … }`` begins while the kernel before it runs, and
``after=(@vector - 1)`` waits for what that has for the Vector engine, ``after=(@vector - 1 but 3)``
for all but its last three instructions there.
``split "double" { … }`` encloses kernels that physical cores run concurrently. Comments begin with
``//``.
"""

from __future__ import annotations

from neuronjax.program.parser import parse_program as parse
from neuronjax.program.printer import print_program as format

__all__ = ["format", "parse"]
