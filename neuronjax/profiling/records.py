"""A recording: the machine, its timed programs, and their runs. Saved as JSON and read back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from neuronjax.errors import ProfileError, quoted
from neuronjax.json_records import read_record
from neuronjax.timing.timeline import KernelRuns

FORMAT = 7
"""Version of the JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """The peak rates and capacities that percentages refer to. Rates are per logical core."""

    target: str
    chip: str
    #: Version of the NeuronCore.
    version: int
    lnc: int
    cores: int
    #: FLOP/s with BF16 operands: 2 · cells of the array · clock.
    max_flops: float
    #: Bytes/s.
    max_hbm_bandwidth: float
    max_dma_bandwidth: float
    dma_engines: int
    base_clock_hz: float
    hbm_bytes: int
    #: Bytes of one partition.
    sbuf_partition_bytes: int
    psum_partition_bytes: int


class Span(NamedTuple):
    """An instruction, transfer or collective of a kernel's first run, in ns from its start."""

    lane: str
    mnemonic: str
    start: float
    end: float
    #: Position of the span whose signal released it; -1 if it waited for none.
    after: int


class Part(NamedTuple):
    """The share that some operations have in one run of a kernel."""

    #: The user's line, ``file:line``; empty if unknown.
    source: str
    #: The user's name scopes, such as ``decoder/block_3``; empty if there are none.
    scope: str
    #: What they add to the run.
    added_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelProfile(KernelRuns):
    """All runs of a kernel. Of the user's lines, those of installed packages come last."""

    name: str
    #: One run: sums over instructions, by the names of `work`.
    work: Mapping[str, float]
    #: Idle time of the Tensor engine in the first run, by the resource that it waited for.
    tensor_waits_ns: Mapping[str, float]
    spans: tuple[Span, ...]
    #: At least one; what they add is what the kernel adds.
    parts: tuple[Part, ...]

    @property
    def source(self) -> str:
        """The user's line that takes most of its time; empty if unknown."""
        return max(self.parts, key=lambda part: part.added_ns).source

    @property
    def time_ns(self) -> float:
        """What all its runs add to the time of the program."""
        return self.added_ns * self.runs


class Instructions(NamedTuple):
    """Instructions of one kind at one line, in one run of the program."""

    #: An engine, "dma" or "collective".
    engine: str
    opcode: str
    #: What they compute, such as ``exp``; empty if that goes without saying.
    operator: str
    #: The widest type that they read or write; empty if they read or write PSUM.
    dtype: str
    #: The StableHLO operations that they are part of.
    operations: tuple[str, ...]
    #: The user's line, ``file:line``, and name scopes; empty if unknown.
    source: str
    scope: str
    number: int
    #: On all physical cores together.
    time_ns: float
    #: On one of those that share the work, in kernels that their engine limits, and in all.
    critical_ns: float
    core_ns: float
    #: What they move, or else write.
    nbytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Opcode:
    """Instructions of one opcode on one engine, in one run of the program."""

    engine: str
    opcode: str
    count: int
    time_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """A collective at one place in the program, and all its runs."""

    path: str
    operation: str
    op_id: int
    stream_id: int
    dtype: str
    input_size: int
    output_size: int
    #: Ranks that exchange data; pairs of sender and receiver for a permute.
    groups: tuple[tuple[int, ...], ...]
    runs: int
    start_ns: float
    time_ns: float
    #: The part of the time in which no data is on the links.
    latency_ns: float

    @property
    def ranks(self) -> int:
        """The number of ranks in the largest group."""
        return max(map(len, self.groups), default=0)


class Tensor(NamedTuple):
    """A tensor while it lies in a memory; addresses and bytes on chip are those of a partition."""

    name: str
    #: hbm, sbuf or psum.
    memory: str
    #: argument, result, constant or scratch.
    kind: str
    dtype: str
    address: int
    nbytes: int
    #: Positions in the program's `kernels` of the first and the last that uses it: it lies there
    #: from the start of the one to the end of the other; what is not scratch, all the time.
    first: int
    last: int


class Level(NamedTuple):
    """Bytes in use from a moment on."""

    at_ns: float
    nbytes: int


class Split(NamedTuple):
    """How the mesh splits some of a program's arrays."""

    #: Tiles along each dimension.
    tiles: tuple[int, ...]
    #: The ranks that hold each tile, in row-major order of the tiles.
    ranks: tuple[tuple[int, ...], ...]


class Array(NamedTuple):
    """An argument or a result of a program as its user knows it."""

    #: The user's, such as ``params['w']`` or ``result[0]``.
    name: str
    #: argument or result.
    kind: str
    dtype: str
    #: Of the whole array.
    shape: tuple[int, ...]
    #: On each core.
    nbytes: int
    #: Position in the program's `splits`.
    split: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramProfile:
    """A timed program; `work` is that of one run."""

    name: str
    fingerprint: str
    ranks: int
    #: The core of each rank, counted over all hosts; none if it did not run.
    cores: tuple[int, ...] = ()
    #: Axes and sizes of the mesh that it was partitioned for; none if there is none.
    mesh: tuple[tuple[str, int], ...] = ()
    arrays: tuple[Array, ...] = ()
    splits: tuple[Split, ...] = ()
    total_ns: float = 0.0
    launch_ns: float = 0.0
    busy_ns: Mapping[str, float] = field(default_factory=dict)
    instruction_counts: Mapping[str, int] = field(default_factory=dict)
    work: Mapping[str, float] = field(default_factory=dict)
    model_flops: float = 0.0
    kernels: tuple[KernelProfile, ...] = ()
    instructions: tuple[Instructions, ...] = ()
    collectives: tuple[Collective, ...] = ()
    #: HBM by kind: argument, result, constant, scratch.
    hbm_bytes: Mapping[str, int] = field(default_factory=dict)
    #: The largest tensors of each memory.
    held: tuple[Tensor, ...] = ()
    #: By memory: bytes of scratch in use (in SBUF and PSUM of a partition) from each moment on, ns
    #: from the start of the run; none is in use before the first and after the last.
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    #: Lower bounds of its time in ns, by resource.
    bounds_ns: Mapping[str, float] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    #: Why it could not be timed; empty if it was.
    error: str = ""

    @property
    def caveat(self) -> str:
        """What its time assumes, or why it has none; empty if there is nothing to say."""
        return self.error or "; ".join(self.assumed)

    @property
    def opcodes(self) -> tuple[Opcode, ...]:
        """The program's instructions by engine and opcode, most frequent first."""
        counts: Counter[tuple[str, str]] = Counter()
        times: Counter[tuple[str, str]] = Counter()
        for row in self.instructions:
            counts[row.engine, row.opcode] += row.number
            times[row.engine, row.opcode] += round(row.time_ns)
        return tuple(
            Opcode(engine=engine, opcode=opcode, count=count, time_ns=times[engine, opcode])
            for (engine, opcode), count in counts.most_common()
        )


class Run(NamedTuple):
    """An execution. Times count from the beginning of the recording. On the host they are real, and
    so is `host_ns`, when it was enqueued; the run begins at `start_ns`, when it has been enqueued
    and the simulated runs before it have left its cores free."""

    program: int
    cores: tuple[int, ...]
    start_ns: float
    host_ns: int
    #: Bytes of tensors, results included, in HBM of its first core when it was enqueued.
    tensor_bytes: int
    #: Real time of the call that enqueued it.
    dispatch_ns: int = 0


COMPILATION, INPUT, DISPATCH = "compilation", "input", "dispatch"
"""Phases of the host: compiling a program, copying an array to a device, enqueuing a run."""


class Phase(NamedTuple):
    """What the host did, in real time from the beginning of the recording."""

    #: `COMPILATION` or `INPUT`; dispatches are in the runs.
    phase: str
    #: A program, or the type and shape of an array.
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """A recording."""

    machine: MachineFacts
    programs: tuple[ProgramProfile, ...]
    runs: tuple[Run, ...]
    #: Number of runs by program; exceeds `runs` if the recording was too long to keep them all.
    counts: tuple[int, ...]
    #: Length of the recording in real time.
    host_ns: int
    phases: tuple[Phase, ...] = ()

    @property
    def total_ns(self) -> float:
        """Simulated time of all runs on the busiest core, back to back."""
        times: dict[int, float] = {}
        for run in self.runs:
            for core in run.cores:
                times[core] = times.get(core, 0.0) + self.programs[run.program].total_ns
        kept = sum(times.values()) and max(times.values())
        return kept if len(self.runs) == sum(self.counts) else max(kept, self._counted_ns)

    @property
    def _counted_ns(self) -> float:
        pairs = zip(self.programs, self.counts, strict=True)
        return sum(program.total_ns * count for program, count in pairs)

    def to_json(self) -> dict[str, Any]:
        """The recording as plain dictionaries and lists."""
        return {"format": FORMAT, **asdict(self)}


def from_json(given: Any) -> Profile:
    """Reads what `to_json` made. ProfileError: it is something else, or of another version."""
    version = given.get("format") if isinstance(given, Mapping) else None
    if version != FORMAT:
        raise ProfileError(
            f"the profile has format {quoted(version)}, but this version reads {FORMAT}; record"
            " it again."
        )
    try:
        return read_record(
            Profile, {name: entry for name, entry in given.items() if name != "format"}
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"the profile is damaged ({error!r}); record it again.") from None
