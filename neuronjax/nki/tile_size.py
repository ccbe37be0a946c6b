"""`nki.language.tile_size`: limits of tiles."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from neuronjax.machine.chips import CHIPS
from neuronjax.machine.specs import CoreSpec
from neuronjax.nki.refusal import unknown
from neuronjax.nki.tracing import current


class TileSize:
    """Limits of tiles, in elements where the name says nothing else; those of SBUF depend on the
    chip that a kernel is traced for.

    Source: NKI language reference, tile_size; architecture guides.
    """

    pmax: ClassVar[int] = 128
    #: Of float32 elements of a partition.
    psum_fmax: ClassVar[int] = 512
    psum_bank_fmax: ClassVar[int] = 512
    psum_bank_fmax_bytes: ClassVar[int] = 2048
    gemm_stationary_fmax: ClassVar[int] = 128
    gemm_moving_fmax: ClassVar[int] = 512
    bn_stats_fmax: ClassVar[int] = 512
    #: Bytes.
    psum_min_align: ClassVar[int] = 4
    #: Bytes.
    sbuf_min_align: ClassVar[int] = 1

    def __getattr__(self, name: str) -> NoReturn:
        """UnknownNameError: there is no such limit."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise unknown("nki.language.tile_size", name, dir(self))

    @property
    def psum_num_banks(self) -> int:
        """Banks of PSUM in a partition."""
        return _core().psum.banks

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF over all partitions."""
        return _core().sbuf.size_bytes

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of a partition of SBUF that tiles may take."""
        return _core().sbuf.usable_partition_bytes

    @property
    def sbuf_fmax(self) -> int:
        """float32 elements of a partition of SBUF that tiles may take."""
        return self.sbuf_fmax_bytes // 4

    @property
    def total_available_sbuf_size(self) -> int:
        """The older name of `sbuf_fmax_bytes`."""
        return self.sbuf_fmax_bytes


def _core() -> CoreSpec:
    return CHIPS[current().chip].core
