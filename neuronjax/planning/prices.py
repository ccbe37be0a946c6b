"""What machines cost. Prices differ by region, contract and day: a file of the user's goes before
the prices on demand that `on_demand.toml` keeps, in the same form.

["trn1.32xlarge"]
usd_per_hour = 21.5
date = "2026-08-01"                 # when it was read
source = "https://aws.amazon.com/ec2/pricing/on-demand/, us-east-1"
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuronjax.errors import ConfigurationError
from neuronjax.machine.instances import find_instance
from neuronjax.planning.documents import read_toml
from neuronjax.planning.record import Price


def read_prices(path: str | Path) -> dict[str, Price]:
    """Target -> price of one instance and hour.

    ConfigurationError: no such file, no TOML, an entry without number, date or source.
    UnknownTargetError: an entry of no known target.
    """
    entries = read_toml("prices", path)
    return {find_instance(name).name: _price(path, name, entries[name]) for name in entries}


def _price(path: str | Path, name: str, entry: Any) -> Price:
    fields = ("usd_per_hour", "date", "source")
    given = entry if isinstance(entry, Mapping) else {}
    number: Any = given.get("usd_per_hour")
    if set(given) != set(fields) or not _is_price(number):
        raise ConfigurationError(
            f'prices {path}: ["{name}"] needs {", ".join(fields)} and nothing else; target names '
            "are quoted because of their dots."
        )
    return Price(usd_per_hour=number, source=str(given["source"]), date=str(given["date"]))


def _is_price(number: Any) -> bool:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return is_number and 0 < number < math.inf


@functools.cache
def prices_on_demand() -> Mapping[str, Price]:
    """Target -> what AWS asks on demand, where it does."""
    return read_prices(Path(__file__).with_name("on_demand.toml"))


def price_for(
    target: str, given: float | Price | None, prices: Mapping[str, Price]
) -> Price | None:
    """The price of a target: the given one, else that of the user's file, else that on demand."""
    if isinstance(given, int | float):
        return Price(usd_per_hour=given)
    return given or prices.get(target) or prices_on_demand().get(target)
