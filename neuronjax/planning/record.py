"""The results of an estimate. Percentages follow Neuron Explorer's definitions, per logical
core."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from neuronjax.display import Displayed, Table
from neuronjax.planning import roofline_plot, table
from neuronjax.planning.traffic import Traffic
from neuronjax.timing.ranges import Traits, range_of

MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class KernelShare:
    """Kernels of one place in the user's program, over a whole step."""

    operations: tuple[str, ...]
    source: str
    """``file:line``; empty if nobody knows."""
    time_ns: float
    runs: float


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A remark that the Neuron compiler would make about the program."""

    label: str
    """The remark's code, such as ``NCC_EVRF001``."""
    severity: str
    """``note``, ``warning`` or ``error``."""
    problem: str
    where: str
    """``file:line``."""
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one instance in one way to pay, with where and when it was read."""

    usd_per_hour: float
    source: str = "given by the user"
    date: str = ""
    kind: str = "on demand"
    """One of `prices.KINDS`."""
    region: str = ""

    @property
    def origin(self) -> str:
        """The source of the number, in words."""
        is_given = not self.date
        parts = (self.source, "" if is_given else self.kind, self.region, self.date)
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, kw_only=True, repr=False)
class Estimate(Displayed):
    """One step of a program on a machine. Work and memory are per logical core."""

    name: str
    target: str
    lnc: int
    ranks: int
    mesh: Mapping[str, int]
    instances: int
    """Machines of that kind that the ranks fill."""
    instance_cores: int
    """Logical cores of one machine."""
    step_ns: float
    traits: Traits
    """What the trust in its time depends on."""
    launch_ns: float
    """Part of the step before its first and after its last kernel, with the host's call."""
    host_call_ns: float = 0.0
    """Part of it that the host takes to call the program, beside the device; 0 where measurements
    do not tell it from the launch."""
    busy_ns: Mapping[str, float]
    """One physical core's time by engine, ``dma`` and ``collective``."""
    model_flops: float
    hardware_flops: float
    hbm_traffic_bytes: float
    network_bytes: float
    traffic: tuple[Traffic, ...]
    """What a core sends to others, by axis of the mesh."""
    max_flops: float
    """FLOP/s: 2 · cells of the array · clock, of the physical cores of a logical one."""
    max_hbm_bandwidth: float
    """Bytes/s."""
    memory: Mapping[str, int]
    """Bytes of HBM by kind."""
    memory_ranges: Mapping[str, tuple[int, int]]
    """The ranges of the kinds that the runtime decides about (`machine.device_memory`)."""
    capacity_bytes: int
    spilled_bytes: float
    """Values written to HBM by a kernel and read back by another one."""
    instructions: Mapping[str, float]
    """Hardware instructions by engine."""
    kernels: tuple[KernelShare, ...]
    """Costliest first."""
    tokens: int | None = None
    samples: int | None = None
    price: Price | None = None
    advice: tuple[str, ...] = ()
    """What to change if it does not fit."""
    assumed: tuple[str, ...] = field(default=())
    idle_axes: tuple[str, ...] = ()
    """Axes of the mesh that split no argument or result, and along which nothing is sent."""
    remarks: tuple[Remark, ...] = ()
    """Remarks of the compiler, where they were asked for."""

    @property
    def device_ns(self) -> float:
        """Time of a step on the device with its launch, as ``nki.benchmark`` gives it."""
        return self.step_ns - self.host_call_ns

    @property
    def step_seconds(self) -> float:
        """Time of a step."""
        return self.step_ns * 1e-9

    @property
    def range_ns(self) -> tuple[float, float]:
        """The times between which four of five measurements of the step would lie."""
        return range_of(self.step_ns, self.traits)[:2]

    @property
    def basis(self) -> str:
        """What `range_ns` rests on: a class of programs, its public points, and what widened it."""
        return range_of(self.step_ns, self.traits).basis

    @property
    def mfu_estimated_percent(self) -> float:
        """What the model asks for over what the Tensor engine could do in that time.

        The workload says it: 6 for each weight and token of training, and attention's. Of one that
        does not, all products of its program count, those that are computed again among them.
        """
        return 100 * self.model_flops / (self.max_flops * self.step_seconds)

    @property
    def hfu_estimated_percent(self) -> float:
        """What the Tensor engine does over what it could do in that time, with what is computed
        again, what several cores compute, and transposes."""
        return 100 * self.hardware_flops / (self.max_flops * self.step_seconds)

    @property
    def mbu_estimated_percent(self) -> float:
        """Bytes of HBM read and written over what its bandwidth allows in that time."""
        return 100 * self.hbm_traffic_bytes / (self.max_hbm_bandwidth * self.step_seconds)

    @property
    def mfu_max_achievable_estimated_percent(self) -> float:
        """Roofline: the MFU that this traffic allows."""
        if not self.hbm_traffic_bytes:
            return 100.0
        intensity = self.model_flops / self.hbm_traffic_bytes
        return min(100.0, 100 * intensity / (self.max_flops / self.max_hbm_bandwidth))

    @property
    def essential_bytes(self) -> int:
        """HBM traffic of a step that reads each argument and writes each result once."""
        return self.tensor_bytes - self.memory.get("scratch", 0)

    @property
    def roofline_ns(self) -> float:
        """The least time of a step: its arithmetic in bfloat16, or its essential traffic."""
        return 1e9 * max(
            self.model_flops / self.max_flops, self.essential_bytes / self.max_hbm_bandwidth
        )

    @property
    def bottleneck(self) -> str:
        """The resource that is busy for longest, as in `busy_ns`."""
        return max(self.busy_ns, key=lambda name: self.busy_ns[name])

    @property
    def memory_bytes(self) -> int:
        """HBM of one core."""
        return sum(self.memory.values())

    @property
    def tensor_bytes(self) -> int:
        """HBM of one core without what the runtime takes."""
        runtimes = ("reserved", *self.memory_ranges)
        return sum(nbytes for kind, nbytes in self.memory.items() if kind not in runtimes)

    @property
    def memory_range_bytes(self) -> tuple[int, int]:
        """HBM of one core at least and at most."""
        sure = sum(nbytes for kind, nbytes in self.memory.items() if kind not in self.memory_ranges)
        lows, highs = zip((sure, sure), *self.memory_ranges.values(), strict=True)
        return sum(lows), sum(highs)

    @property
    def headroom_bytes(self) -> int:
        """The bytes that are left of a core's HBM; negative: the program does not fit."""
        return self.capacity_bytes - self.memory_bytes

    @property
    def fits(self) -> bool:
        """Whether a core's HBM suffices."""
        return self.headroom_bytes >= 0

    @property
    def instruction_count(self) -> float:
        """Hardware instructions of all engines."""
        return sum(self.instructions.values())

    @property
    def tokens_per_second(self) -> float | None:
        """Over all cores, if the workload says what a step does."""
        return None if self.tokens is None else self.tokens / self.step_seconds

    @property
    def samples_per_second(self) -> float | None:
        """Over all cores, if the workload says what a step does."""
        return None if self.samples is None else self.samples / self.step_seconds

    def per_second(self, count: int | None) -> tuple[float, float] | None:
        """The range of the rate of what a step has so many of, the slowest first."""
        if count is None:
            return None
        fastest, slowest = self.range_ns
        return 1e9 * count / slowest, 1e9 * count / fastest

    @property
    def tokens_per_second_range(self) -> tuple[float, float] | None:
        """The tokens per second that follow from `range_ns`."""
        return self.per_second(self.tokens)

    @property
    def samples_per_second_range(self) -> tuple[float, float] | None:
        """The samples per second that follow from `range_ns`."""
        return self.per_second(self.samples)

    @property
    def usd_per_step(self) -> float | None:
        """The price of all instances for the time of a step, in USD."""
        if self.price is None:
            return None
        return self.price.usd_per_hour * self.instances * self.step_seconds / 3600

    @property
    def usd_per_million_tokens(self) -> float | None:
        """The price of a million tokens, in USD."""
        if self.usd_per_step is None or not self.tokens:
            return None
        return self.usd_per_step / self.tokens * MILLION

    def as_dict(self) -> dict[str, Any]:
        """All fields and what follows from them."""
        derived = (
            "range_ns", "basis",
            "mfu_estimated_percent", "hfu_estimated_percent", "mbu_estimated_percent",
            "mfu_max_achievable_estimated_percent", "roofline_ns", "bottleneck", "memory_bytes",
            "memory_range_bytes", "headroom_bytes", "fits", "instruction_count",
            "tokens_per_second", "tokens_per_second_range", "samples_per_second",
            "samples_per_second_range", "usd_per_step", "usd_per_million_tokens",
        )  # fmt: skip
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    def mesh_text(self) -> str:
        """Returns a table of what a core sends along each axis of the mesh, and over which
        links."""
        return str(table.traffic(self))

    def to_json(self) -> str:
        """The estimate as a JSON object; times in ns, sizes in bytes."""
        return json.dumps(self.as_dict(), indent=2)

    def roofline_svg(self) -> str:
        """The step under the roofline of its core, as a picture."""
        return roofline_plot.svg(self)

    def parts(self) -> Iterator[str | Table]:
        return table.parts(self)

    def _repr_html_(self) -> str:
        """The tables, and the picture below them."""
        return f'{super()._repr_html_()}<div style="max-width: 640px">{self.roofline_svg()}</div>'
