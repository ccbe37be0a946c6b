"""HBM accounting of the logical cores, and protection of the host's own memory."""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from neuronjax.errors import DeviceMemoryError, HostMemoryError

GIB = 1 << 30
HOST_CHECK_BYTES = 64 << 20
"""Requests smaller than this are not checked against the host's free memory."""
HOST_RESERVE_BYTES = 512 << 20
"""What an allocation must leave free on the host."""


@dataclass(frozen=True)
class MemoryStats:
    """Bytes and counts of one logical core."""

    bytes_in_use: int
    peak_bytes_in_use: int
    bytes_limit: int
    bytes_reserved: int
    num_allocs: int
    largest_alloc_size: int


@dataclass(frozen=True)
class LoadedBytes:
    """What a loaded program occupies on each of its cores besides its tensors."""

    name: str
    code: int
    scratchpad: int
    rings: int = 0
    collectives: int = 0
    """What the device's runtime would take for it and for collectives (`machine.device_memory`): an
    estimate, which is shown but refuses nothing."""


CORE_COUNTS = ("tensors", "limit", "bare", "bare_peak", "bare_allocs", "bare_largest")
"""What is counted of a core for machine code that allocates tensors, too, 64 bits each.

``tensors`` is what the ledger has allocated less what it has freed, under its lock; ``bare`` the
same of the code, under the interpreter's lock, and may be negative. Both have one writer each, and
``bare_peak`` is the peak of their sum that the code has seen.
"""
_TENSORS, _LIMIT, _BARE, _BARE_PEAK, _BARE_ALLOCS, _BARE_LARGEST = range(len(CORE_COUNTS))


class HbmLedger:
    """Bytes in use per logical core: tensors, and code and scratchpad of loaded programs.

    The scratchpad is shared: a core needs the largest of its programs' (Neuron runtime).
    """

    def __init__(self, labels: Sequence[str], limits: Sequence[int], reserved: int) -> None:
        self._labels = labels
        self._reserved = reserved
        self._counts = [array("q", [0] * len(CORE_COUNTS)) for _ in limits]
        for counts, limit in zip(self._counts, limits, strict=True):
            counts[_LIMIT] = limit - reserved
        self._peak = [0] * len(limits)
        self._allocs = [0] * len(limits)
        self._largest = [0] * len(limits)
        self._programs: list[dict[int, LoadedBytes]] = [{} for _ in limits]
        self._keys = itertools.count()
        self._lock = threading.RLock()  # a collection inside it may free other tensors
        self.settle: Callable[[], None] = lambda: None
        """Frees tensors that are waiting to be freed; called before usage is reported or an
        allocation is refused."""

    def counts_at(self, core: int) -> int:
        """Address of the ``CORE_COUNTS`` of a core."""
        return self._counts[core].buffer_info()[0]

    def _in_use(self, core: int) -> int:
        counts = self._counts[core]
        return counts[_TENSORS] + counts[_BARE]

    def allocate(self, cores: Sequence[int], nbytes: int, needed: int | None = None) -> None:
        """Charges ``nbytes`` of tensors to each core; all or none. For a moment ``needed`` bytes
        are in use instead: those of a run with its temporaries.

        Raises:
          DeviceMemoryError: a core would exceed its HBM; the message has a table by core.
        """
        most = nbytes if needed is None else needed
        with self._lock:
            all_counts = self._counts
            for core in cores:
                counts = all_counts[core]
                if counts[_TENSORS] + counts[_BARE] + most > counts[_LIMIT]:
                    self.check((core,), most, "scratchpad" if most > nbytes else "tensors")
            for core in cores:
                counts = all_counts[core]
                in_use = counts[_TENSORS] + counts[_BARE] + most
                counts[_TENSORS] += nbytes
                self._allocs[core] += 1
                if in_use > self._peak[core]:
                    self._peak[core] = in_use
                if nbytes > self._largest[core]:
                    self._largest[core] = nbytes

    def free(self, cores: Iterable[int], nbytes: int) -> None:
        """Returns ``nbytes`` of tensors of each core."""
        with self._lock:
            for core in cores:
                self._counts[core][_TENSORS] -= nbytes

    def check(self, cores: Iterable[int], nbytes: int, usage: str = "tensors") -> None:
        """Raises ``DeviceMemoryError`` if ``nbytes`` more do not fit one of ``cores``."""
        for core in cores:
            if self._in_use(core) + nbytes > self._counts[core][_LIMIT]:
                self.settle()
            if self._in_use(core) + nbytes > self._counts[core][_LIMIT]:
                raise DeviceMemoryError(self.refusal(core, nbytes, usage))

    def load(self, cores: Iterable[int], program: LoadedBytes) -> int:
        """Charges a loaded program to its cores; returns the key for ``unload``."""
        key = next(self._keys)
        for core in cores:
            self._programs[core][key] = program
        return key

    def unload(self, cores: Iterable[int], key: int) -> None:
        """Takes a program off its cores."""
        for core in cores:
            self._programs[core].pop(key, None)

    def tensor_bytes(self, core: int) -> int:
        """Bytes of tensors in use on one core."""
        self.settle()
        return self._in_use(core)

    @property
    def cores(self) -> int:
        """Logical cores."""
        return len(self._counts)

    def usage(self, core: int) -> dict[str, int]:
        """Bytes of one core under the names of neuron-monitor's ``neuroncore_memory_usage``."""
        self.settle()
        programs = list(self._programs[core].values())
        return {
            "constants": 0,
            "model_code": sum(program.code for program in programs),
            "model_shared_scratchpad": max((loaded.scratchpad for loaded in programs), default=0),
            "runtime_memory": self._reserved,
            "tensors": self._in_use(core),
        }

    def stats(self, core: int) -> MemoryStats:
        """The statistics of one core."""
        self.settle()
        counts = self._counts[core]
        return MemoryStats(
            bytes_in_use=self._in_use(core),
            peak_bytes_in_use=max(self._peak[core], counts[_BARE_PEAK]),
            bytes_limit=self._counts[core][_LIMIT],
            bytes_reserved=self._reserved,
            num_allocs=self._allocs[core] + counts[_BARE_ALLOCS],
            largest_alloc_size=max(self._largest[core], counts[_BARE_LARGEST]),
        )

    def refusal(self, core: int, nbytes: int, usage: str = "tensors") -> str:
        """The runtime's message when an allocation does not fit a core, with a table of usage."""
        rows = [_ROW.format("", *_COLUMNS)]
        shown = sorted({core, *range(max(0, core - 3), min(len(self._counts), core + 4))})
        rows += [self._row(number) for number in shown]
        return (
            f"Failed to allocate {nbytes / GIB:.3f}GB (alignment: none, usage: {usage}) on "
            f"{self._labels[core]}\n" + "\n".join(rows) + "\nReduce the batch or sequence length, "
            "shard over more cores (tensor, pipeline or fully sharded parallelism), donate buffers "
            "that are no longer needed, or choose a target with more memory (NEURONJAX_TARGET)."
        )

    def _row(self, core: int) -> str:
        programs = self._programs[core].values()
        code = sum(program.code for program in programs)
        scratchpad = max((program.scratchpad for program in programs), default=0)
        rings = sum(program.rings for program in programs)
        collectives = max((program.collectives for program in programs), default=0)
        cells = (code, self._in_use(core), scratchpad, self._reserved, rings, collectives)
        limit = self._counts[core][_LIMIT] + self._reserved
        return _ROW.format(self._labels[core], *map(_size, (sum(cells), *cells, limit)))


_COLUMNS = (
    "TOTAL", "Model Code", "Tensors", "Scratchpad", "Runtime", "DMA Rings", "Collectives", "Limit",
)  # fmt: skip
_ROW = "{:<14}" + "|{:>11}" * len(_COLUMNS)


def _size(nbytes: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.3f}{unit}"
    return f"{nbytes:.3f}B"


def host_available_bytes() -> int | None:
    """Available memory of the host in bytes; ``None`` where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        return None
    return None


def protect_host(nbytes: int, purpose: str) -> None:
    """Refuses allocations that would get the process killed for lack of host memory.

    Raises:
      HostMemoryError: ``nbytes`` are not available on this machine.
    """
    if nbytes < HOST_CHECK_BYTES:
        return
    available = host_available_bytes()
    if available is not None and nbytes > available - HOST_RESERVE_BYTES:
        raise HostMemoryError(
            f"{purpose} needs {nbytes / GIB:.2f} GiB of this machine's memory, but only "
            f"{available / GIB:.2f} GiB are available. The emulated cores' memory is kept there: "
            "use a smaller model or batch, fewer cores (NEURON_RT_NUM_CORES), or a larger machine."
        )
