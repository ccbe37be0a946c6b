"""What machines cost, by the way to pay. Prices differ by region, contract and day: a file of the
user's goes before what AWS asks, which `published_prices.toml` keeps in the same form.

["trn1.32xlarge"]
usd_per_hour = 21.5
date = "2026-08-01"                 # when it was read
source = "https://aws.amazon.com/ec2/pricing/on-demand/"
region = "us-east-1"                # this and the next may be left out
kind = "on demand"

A target that has several kinds of price is a list of tables: [["trn1.32xlarge"]].
"""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuronjax.errors import ConfigurationError, did_you_mean, quoted
from neuronjax.machine.instances import find_instance
from neuronjax.planning.documents import read_toml
from neuronjax.planning.record import Price

KINDS = ("on demand", "reserved for a year", "savings plan", "capacity block", "spot")
"""Ways to pay. The first that a target has is the price of an estimate."""

_NEEDED = ("usd_per_hour", "date", "source")
_OPTIONAL = ("kind", "region")

Prices = Mapping[str, tuple[Price, ...]]
"""Target -> its prices per instance and hour, in the order of `KINDS`."""


def read_prices(path: str | Path) -> Prices:
    """The prices of a file.

    ConfigurationError: no such file, no TOML; an entry without number, date or source, of another
    currency, or with a date that is none or still to come.
    UnknownTargetError: an entry of no known target.
    """
    entries = read_toml("prices", path)
    prices = {}
    for name, given in entries.items():
        target = find_instance(name).name
        rows = given if isinstance(given, list) else [given]
        read = [_price(f'prices {path}: ["{name}"]', row) for row in rows]
        prices[target] = tuple(sorted(read, key=lambda price: KINDS.index(price.kind)))
    return prices


def _price(where: str, entry: Any) -> Price:
    if not isinstance(entry, Mapping) or not any(key in entry for key in _NEEDED):
        raise ConfigurationError(
            f"{where} needs {', '.join(_NEEDED)}; target names are quoted because of their dots."
        )
    for key in entry:
        if key not in (*_NEEDED, *_OPTIONAL):
            hint = did_you_mean(key, (*_NEEDED, *_OPTIONAL)) if key != "currency" else ""
            raise ConfigurationError(
                f"{where} has an unknown field {quoted(key)}.{hint} Prices are in US dollars, with "
                f"the fields {', '.join((*_NEEDED, *_OPTIONAL))}."
            )
    missing = [key for key in _NEEDED if key not in entry]
    if missing:
        raise ConfigurationError(f"{where} lacks {', '.join(missing)}.")
    number, kind = entry["usd_per_hour"], entry.get("kind", KINDS[0])
    if not _is_price(number):
        raise ConfigurationError(
            f"{where}: usd_per_hour is {quoted(number)}, but must be a number greater than 0."
        )
    if kind not in KINDS:
        raise ConfigurationError(
            f"{where}: kind is {quoted(kind)}, but must be one of {', '.join(KINDS)}."
        )
    return Price(
        usd_per_hour=number,
        kind=kind,
        region=str(entry.get("region", "")),
        date=_date(where, entry["date"]),
        source=str(entry["source"]),
    )


def _is_price(number: Any) -> bool:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return is_number and 0 < number < math.inf


def _date(where: str, given: Any) -> str:
    """The day on which a price was read, as ``2026-08-01``."""
    try:
        day = datetime.date.fromisoformat(str(given))
    except ValueError:
        raise ConfigurationError(
            f"{where}: date is {quoted(str(given))}, but must be a day such as 2026-08-01."
        ) from None
    if day > datetime.date.today() + datetime.timedelta(days=1):
        raise ConfigurationError(f"{where}: date is {day}, which is still to come.")
    return day.isoformat()


@functools.cache
def published_prices() -> Prices:
    """What AWS asks, where it says so."""
    return read_prices(Path(__file__).with_name("published_prices.toml"))


def price_for(target: str, given: float | Price | None, prices: Prices) -> Price | None:
    """The price of a target: the given one, else that of the user's file, else AWS's."""
    if isinstance(given, int | float):
        return Price(usd_per_hour=given)
    known = prices.get(target) or published_prices().get(target)
    return given or (known[0] if known else None)


def alternatives(target: str, price: Price, prices: Prices) -> tuple[Price, ...]:
    """All prices of the list that a target's price is from; the price alone if it is the user's."""
    lists = (prices.get(target, ()), published_prices().get(target, ()))
    return next((known for known in lists if price in known), (price,))
