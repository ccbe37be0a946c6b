"""A recording: the machine, its programs in time, and their runs. It is JSON, and comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from neuronjax.errors import ProfileError, quoted

FORMAT = 2
"""Version of the JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """What percentages are of. Rates are of one logical core."""

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
    #: Position of the span whose signal it waited for last; -1: of none.
    after: int


class Part(NamedTuple):
    """What some operations of a kernel add to one run of it."""

    #: The user's line, ``file:line``; empty if nobody knows.
    source: str
    #: The user's name scopes, such as ``decoder/block_3``; empty if there are none.
    scope: str
    duration_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelProfile:
    """All runs of a kernel at one place of a program."""

    path: str
    name: str
    operations: tuple[str, ...]
    #: The user's lines, ``file:line``, those of installed packages last.
    sources: tuple[str, ...]
    runs: int
    start_ns: float
    end_ns: float
    duration_ns: float
    #: One run, by engine, "dma" and "collective"; of one physical core.
    busy_ns: Mapping[str, float]
    dma_active_ns: float
    critical: str
    #: One run: sums over instructions, by the names of `work`.
    work: Mapping[str, float]
    #: While it runs: scratch in HBM, and bytes of a partition in SBUF and PSUM.
    hbm_scratch_bytes: int
    sbuf_bytes: int
    psum_bytes: int
    #: Of its first run: time that the Tensor engine stood still, by the lane that it waited for.
    tensor_waits_ns: Mapping[str, float]
    spans: tuple[Span, ...]
    #: At least one; their durations add up to the kernel's.
    parts: tuple[Part, ...]

    @property
    def source(self) -> str:
        """The user's line that most of its time goes to; empty if nobody knows."""
        return max(self.parts, key=lambda part: part.duration_ns).source

    @property
    def time_ns(self) -> float:
        """All runs."""
        return self.duration_ns * self.runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Opcode:
    """Instructions of one kind on one engine, over a run of the program."""

    engine: str
    opcode: str
    count: int
    time_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """Collectives of one place."""

    path: str
    operation: str
    op_id: int
    stream_id: int
    dtype: str
    input_size: int
    output_size: int
    ranks: int
    replica_group: str
    runs: int
    start_ns: float
    time_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramProfile:
    """A program in time; work is over one run."""

    name: str
    fingerprint: str
    ranks: int
    total_ns: float = 0.0
    launch_ns: float = 0.0
    busy_ns: Mapping[str, float] = field(default_factory=dict)
    instruction_counts: Mapping[str, int] = field(default_factory=dict)
    work: Mapping[str, float] = field(default_factory=dict)
    model_flops: float = 0.0
    kernels: tuple[KernelProfile, ...] = ()
    opcodes: tuple[Opcode, ...] = ()
    collectives: tuple[Collective, ...] = ()
    #: HBM by kind: argument, result, constant, scratch.
    hbm_bytes: Mapping[str, int] = field(default_factory=dict)
    #: Lower bounds of its time in ns, by resource.
    bounds_ns: Mapping[str, float] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    #: Why it could not be timed; empty if it was.
    error: str = ""


class Run(NamedTuple):
    """One execution. `start_ns` is simulated: when its cores were free; `host_ns` counts from the
    beginning of the recording on the clock of the process."""

    program: int
    cores: tuple[int, ...]
    start_ns: float
    host_ns: int
    #: Tensors in HBM of its first core when it was enqueued, results included.
    tensor_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """A recording."""

    machine: MachineFacts
    programs: tuple[ProgramProfile, ...]
    runs: tuple[Run, ...]
    #: By program; more than `runs` has where a recording was too long to keep all.
    counts: tuple[int, ...]
    #: Length of the recording on the clock of the process.
    host_ns: int

    @property
    def total_ns(self) -> float:
        """Simulated time of all runs on the busiest core, one after the other."""
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
        """Plain dictionaries and lists."""
        return {"format": FORMAT, **asdict(self)}


def from_json(given: Any) -> Profile:
    """What `to_json` made. ProfileError: it is something else, or of another version."""
    version = given.get("format") if isinstance(given, Mapping) else None
    if version != FORMAT:
        raise ProfileError(
            f"the profile is of format {quoted(version)}, this version reads {FORMAT}; record"
            " it again."
        )
    try:
        return Profile(
            machine=MachineFacts(**given["machine"]),
            programs=tuple(_program(each) for each in given["programs"]),
            runs=tuple(Run(each[0], tuple(each[1]), *each[2:]) for each in given["runs"]),
            counts=tuple(given["counts"]),
            host_ns=given["host_ns"],
        )
    except (KeyError, TypeError, IndexError) as error:
        raise ProfileError(f"the profile is damaged ({error!r}); record it again.") from None


def _program(given: Mapping[str, Any]) -> ProgramProfile:
    return ProgramProfile(
        **{
            **given,
            "kernels": tuple(_kernel(each) for each in given["kernels"]),
            "opcodes": tuple(Opcode(**each) for each in given["opcodes"]),
            "collectives": tuple(Collective(**each) for each in given["collectives"]),
            "assumed": tuple(given["assumed"]),
        }
    )


def _kernel(given: Mapping[str, Any]) -> KernelProfile:
    return KernelProfile(
        **{
            **given,
            "operations": tuple(given["operations"]),
            "sources": tuple(given["sources"]),
            "spans": tuple(Span(*each) for each in given["spans"]),
            "parts": tuple(Part(*each) for each in given["parts"]),
        }
    )
