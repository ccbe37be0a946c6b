"""What AWS claims of one generation over another, beside what the records of chips say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from neuronjax.machine.instances import InstanceSpec, find_instance
from neuronjax.timing.ranges import chip_spread, measured

Measure = Callable[[InstanceSpec], float]


def compute(*formats: str) -> Measure:
    """Peak FLOP/s of all chips, in the first of the formats that they have."""

    def measure(instance: InstanceSpec) -> float:
        rates = instance.chip.core.tensor.rates
        dtype = next(dtype for dtype in formats if dtype in rates)
        return instance.chips * instance.chip.flops(dtype)

    return measure


def bandwidth(instance: InstanceSpec) -> float:
    """Bytes/s of HBM of all chips."""
    return instance.chips * instance.chip.cores * instance.chip.hbm_bandwidth_per_core


def capacity(instance: InstanceSpec) -> float:
    """Bytes of HBM of all chips."""
    return float(instance.chips * instance.chip.hbm.capacity_bytes)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published ratio of two machines."""

    what: str
    newer: str
    older: str
    claimed: float
    source: str
    measure: Measure | None
    """What predicts it; None: nothing does."""
    difference: str
    """Why prediction and claim differ, if they do."""

    @property
    def predicted(self) -> float | None:
        """The ratio of the records; None where nothing is published to predict it from."""
        if self.measure is None:
            return None
        return self.measure(find_instance(self.newer)) / self.measure(find_instance(self.older))

    @property
    def of_programs(self) -> tuple[float, float] | None:
        """The 80 % range of the ratio for programs that are limited by this alone: each of the two
        chips may lie as far off as chips do. None: nothing is predicted, or takes no time."""
        if self.predicted is None or self.measure is capacity:
            return None
        factor = math.exp(math.sqrt(2) * chip_spread(measured()))
        return self.predicted / factor, self.predicted * factor


_FP8 = compute("float8_e4m3fn_x4", "float8_e4m3")
_BF16 = compute("bfloat16")
_TRN3 = "AWS, EC2 Trn3 UltraServers"
_TRN2 = "AWS, EC2 Trn2 instances"
_INF2 = "AWS, EC2 Inf2 instances"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        what="compute, FP8", newer="trn3-gen2-ultraserver", older="trn2-ultraserver", claimed=4.4,
        source=_TRN3, measure=_FP8,
        difference="144 chips against 64; MXFP8 against FP8",
    ),
    Claim(
        what="HBM bandwidth", newer="trn3-gen2-ultraserver", older="trn2-ultraserver",
        claimed=3.9, source=_TRN3, measure=bandwidth,
        difference="144 chips against 64",
    ),
    Claim(
        what="energy efficiency", newer="trn3-gen2-ultraserver", older="trn2-ultraserver",
        claimed=4.0, source=_TRN3, measure=None,
        difference="AWS publishes no power figures for its chips or servers",
    ),
    Claim(
        what="performance", newer="trn2.48xlarge", older="trn1.32xlarge", claimed=4.0,
        source=_TRN2, measure=_BF16,
        difference="for BF16; FP8, which is no faster than BF16 on Trn1, is 6.9 times as fast",
    ),
    Claim(
        what="HBM bandwidth", newer="trn2.48xlarge", older="trn1.32xlarge", claimed=4.0,
        source=_TRN2, measure=bandwidth,
        difference="2.9 against 0.82 TB/s a chip; the claim is rounded",
    ),
    Claim(
        what="HBM capacity", newer="trn2.48xlarge", older="trn1.32xlarge", claimed=3.0,
        source=_TRN2, measure=capacity, difference="",
    ),
    Claim(
        what="throughput", newer="inf2.48xlarge", older="inf1.24xlarge", claimed=4.0,
        source=_INF2, measure=_BF16,
        difference="peak arithmetic; models limited by memory gain as much as its bandwidth",
    ),
    Claim(
        what="latency, limited by HBM", newer="inf2.48xlarge", older="inf1.24xlarge",
        claimed=10.0, source=_INF2, measure=bandwidth,
        difference="bandwidth alone; all-reduces between chips take their share of a step",
    ),
)  # fmt: skip
