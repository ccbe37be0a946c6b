"""From parameter paths to partition specs: the models know axes, only this knows mesh axes."""

import re
from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec

# (regular expression that matches a whole parameter path, names of that array's axes)
AxisTable = Sequence[tuple[str, tuple[str, ...]]]
# name of an array axis -> mesh axis it is split over; axes not named here are not split
AxisRules = Mapping[str, str]


def axis_names(path: str, table: AxisTable) -> tuple[str, ...]:
    """The axis names of the parameter at `path`: the first row that matches.

    Raises ValueError if no row does.
    """
    for pattern, names in table:
        if re.fullmatch(pattern, path):
            return names
    raise ValueError(
        f"no row of the axis table matches the parameter {path!r}; its patterns are "
        f"{[pattern for pattern, _ in table]}. Add a row for it."
    )


def partition_spec(path: str, table: AxisTable, rules: AxisRules) -> PartitionSpec:
    """How the parameter at `path` is split. Raises ValueError if the table does not know it."""
    return PartitionSpec(*(rules.get(name) for name in axis_names(path, table)))
