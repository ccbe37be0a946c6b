"""What an amount of work costs on the machines of a sweep, by the way in which one pays."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from neuronjax.display import Displayed, Table, digits, rounded, without_infinities
from neuronjax.planning.prices import KINDS, Prices, alternatives
from neuronjax.planning.record import Estimate
from neuronjax.planning.sweep import Point, Sweep

STEPS = "steps"
_HOURS_PER_DAY = 24


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """A way to pay for instances, for less than on demand with a commitment or interruptions."""

    name: str
    discount: float = 0.0
    """Part of the price on demand that is saved, from 0 to 1. A machine that is not sold on demand
    is not sold in this way either."""
    interruptions_per_day: float = 0.0
    """Interruptions of each instance, on average."""
    restart_hours: float = 0.0
    """The time from an interruption until the work goes on."""
    checkpoint_hours: float = 0.0
    """Between two checkpoints. On average half of it is lost with an interruption (J. W. Young, "A
    first order approximation to the optimum checkpoint interval", CACM 17(9), 1974)."""

    def hours(self, work: float, instances: int) -> float:
        """Hours until `work` hours are done. Infinite if interruptions take more than they leave.

        The interruption of any of the instances stops all.
        """
        per_hour = self.interruptions_per_day / _HOURS_PER_DAY * instances
        left = 1 - per_hour * (self.restart_hours + self.checkpoint_hours / 2)
        return work / left if left > 0 else math.inf


ON_DEMAND = Purchase(name=KINDS[0])


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A machine that is not estimated here, such as a GPU, with numbers that the user has."""

    name: str
    usd_per_hour: float
    rate: float
    """Units of the work per second."""


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What the work costs in one way to pay."""

    purchase: str
    hours: float
    usd: float


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A machine, and what the work costs there."""

    label: str
    rate: float
    """Units of the work per second."""
    rate_range: tuple[float, float] | None
    """The range of the rate; None: somebody else knows it."""
    instances: int
    cores: int | None
    """Logical cores that the work uses, where they are known."""
    all_cores: int | None
    """Logical cores of the instances, all of which are paid."""
    usd_per_hour: float
    """The price of all instances, on demand if they are sold so."""
    bills: tuple[Bill, ...]

    @property
    def cheapest(self) -> Bill:
        """The way to pay that costs least."""
        return min(self.bills, key=lambda bill: bill.usd)


@dataclass(frozen=True, kw_only=True, repr=False)
class Cost(Displayed):
    """What work costs by machine, cheapest first, and what follows from that."""

    workload: str
    amount: float
    unit: str
    """``tokens``, ``samples`` or ``steps``."""
    offers: tuple[Offer, ...]
    advice: tuple[str, ...]
    without: tuple[str, ...]
    """Machines that have no offer, and why."""
    sources: tuple[str, ...]

    def to_json(self) -> str:
        """The cost as a JSON object; what never ends is null."""
        return json.dumps(without_infinities(asdict(self), None), indent=2)

    def parts(self) -> Iterator[str | Table]:
        names = dict.fromkeys(bill.purchase for offer in self.offers for bill in offer.bills)
        rate = (f"{self.unit}/s", "80 % range")
        headings = ("", "machine", *rate, "instances", "$/h", *names, "hours")
        rows = [_row(offer, [*names], is_best=not i) for i, offer in enumerate(self.offers)]
        yield f"{self.amount:,.10g} {self.unit} of {self.workload}"
        if rows:
            yield Table(rows, head=headings)
            yield "Costs and hours are those of the rate; they vary as its range does."
        if self.advice:
            yield "\n".join(self.advice)
        if self.without:
            machines = (f"  {machine}" for machine in self.without)
            yield "\n".join(("no price or no estimate:", *machines))
        if self.sources:
            yield "\n".join(f"price: {source}" for source in self.sources)


def cost(
    sweep: Sweep,
    *,
    amount: float,
    steps: bool = False,
    utilisation: float = 1.0,
    purchases: Sequence[Purchase] = (ON_DEMAND,),
    rivals: Sequence[Rival] = (),
    prices: Prices | None = None,
) -> Cost:
    """What `amount` of work costs at every usable point of a sweep.

    Args:
      amount: tokens or samples, as the workload counts them, or steps.
      steps: whether it is steps.
      utilisation: part of the time in which instances work; the rest is paid as well.
      purchases: ways to pay for less than on demand.
      prices: the user's list, which the prices of the sweep are from. Every kind of price that a
        machine has in its list, or in AWS's, is a way to pay.
    """
    unit = STEPS if steps else _unit(sweep)
    offers, without = [], []
    for point in sweep.points:
        reason = _obstacle(point)
        if reason:
            without.append(f"{point.label}: {reason}")
            continue
        assert point.estimate is not None
        offers.append(
            _offer(point, point.estimate, unit, amount / utilisation, purchases, prices or {})
        )
    offers += [_rival_offer(rival, amount / utilisation) for rival in rivals]
    offers.sort(key=lambda offer: (offer.cheapest.usd, -offer.rate))
    return Cost(
        workload=sweep.workload,
        amount=amount,
        unit=unit,
        offers=tuple(offers),
        advice=tuple(_advice(offers)),
        without=tuple(without),
        sources=tuple(_sources(sweep, prices or {})),
    )


def _unit(sweep: Sweep) -> str:
    known = [point.estimate for point in sweep.points if point.estimate]
    if known and all(estimate.tokens for estimate in known):
        return "tokens"
    return "samples" if known and all(estimate.samples for estimate in known) else STEPS


def _obstacle(point: Point) -> str:
    if point.estimate is None:
        return point.error
    if not point.usable:
        return "it does not fit in a core's memory"
    if point.estimate.price is None:
        return "AWS publishes no price for it; give --price, or --prices with a file"
    return ""


def _per_step(estimate: Estimate, unit: str) -> float:
    return {"tokens": estimate.tokens, "samples": estimate.samples, STEPS: 1}[unit] or 1


def _offer(
    point: Point,
    estimate: Estimate,
    unit: str,
    amount: float,
    purchases: Sequence[Purchase],
    prices: Prices,
) -> Offer:
    assert estimate.price is not None
    listed = alternatives(estimate.target, estimate.price, prices)
    ways = [(Purchase(name=price.kind), price.usd_per_hour) for price in listed]
    if estimate.price.kind == ON_DEMAND.name:
        reduced = (purchase for purchase in purchases if purchase != ON_DEMAND)
        ways += [(purchase, estimate.price.usd_per_hour) for purchase in reduced]
    rate = _per_step(estimate, unit) / estimate.step_seconds
    low, high = estimate.range_ns
    usd_per_hour = estimate.price.usd_per_hour * estimate.instances
    return Offer(
        label=point.label,
        rate=rate,
        rate_range=(rate * estimate.step_ns / high, rate * estimate.step_ns / low),
        instances=estimate.instances,
        cores=estimate.ranks,
        all_cores=estimate.instances * estimate.instance_cores,
        usd_per_hour=usd_per_hour,
        bills=tuple(
            _bill(purchase, amount / rate / 3600, usd * estimate.instances, estimate.instances)
            for purchase, usd in ways
        ),
    )


def _rival_offer(rival: Rival, amount: float) -> Offer:
    return Offer(
        label=rival.name,
        rate=rival.rate,
        rate_range=None,
        instances=1,
        cores=None,
        all_cores=None,
        usd_per_hour=rival.usd_per_hour,
        bills=(_bill(ON_DEMAND, amount / rival.rate / 3600, rival.usd_per_hour, 1),),
    )


def _bill(purchase: Purchase, work_hours: float, usd_per_hour: float, instances: int) -> Bill:
    hours = purchase.hours(work_hours, instances)
    usd = hours * usd_per_hour * (1 - purchase.discount)
    return Bill(purchase=purchase.name, hours=hours, usd=usd)


def _advice(offers: Sequence[Offer]) -> Iterator[str]:
    """The cheapest machine, what speed costs, and ways to pay that never get done."""
    if not offers:
        return
    best, fastest = offers[0], max(offers, key=lambda offer: offer.rate)
    yield f"Cheapest: {best.label}, {best.cheapest.purchase}, {_usd(best.cheapest.usd)}."
    if fastest is not best and math.isfinite(best.cheapest.usd):
        sooner, dearer = fastest.rate / best.rate, fastest.cheapest.usd / best.cheapest.usd
        yield (
            f"Fastest: {fastest.label}, {sooner:.3g} times as fast for {dearer:.3g} times the "
            "price."
        )
    for offer in offers:
        if offer.cores != offer.all_cores:
            yield (
                f"{offer.label} uses {offer.cores} of {offer.all_cores} cores, but all are paid "
                "for: more replicas would share the price."
            )
            break
    for offer in offers:
        for bill in offer.bills:
            if math.isinf(bill.usd):
                yield (
                    f"{offer.label}, {bill.purchase}: interruptions take all of the time; save"
                    " checkpoints more often, or use fewer instances."
                )


def _sources(sweep: Sweep, prices: Prices) -> Iterator[str]:
    known = {
        point.estimate.target: point.estimate.price
        for point in sweep.points
        if point.estimate and point.estimate.price
    }
    for target, used in known.items():
        for price in alternatives(target, used, prices):
            yield f"{target} {_usd(price.usd_per_hour)}/h ({price.origin})"


def _row(offer: Offer, names: Sequence[str], *, is_best: bool) -> tuple[str, ...]:
    bills = {bill.purchase: bill for bill in offer.bills}
    return (
        "*" if is_best else "",
        offer.label,
        *_rates(offer),
        str(offer.instances),
        f"{offer.usd_per_hour:,.2f}",
        *(_usd(bills[name].usd) if name in bills else "-" for name in names),
        f"{offer.cheapest.hours:,.3g}",
    )


def _rates(offer: Offer) -> tuple[str, str]:
    """The rate and its range, with the digits that they deserve."""
    if offer.rate_range is None:
        return f"{offer.rate:,.6g}", "-"
    shown = digits(*offer.rate_range)
    low, high = (rounded(bound, shown) for bound in offer.rate_range)
    return rounded(offer.rate, shown + 1), f"{low} to {high}"


def _usd(amount: float) -> str:
    if math.isinf(amount):
        return "never done"
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4g}"
