"""Machines that do not exist: a target whose records are changed by a TOML file.

Tables are the records of `neuronjax.machine`, from `InstanceSpec` on, keys their fields:

    base = "trn2.48xlarge"             # a target; default: the one that is asked for
    lnc = 2

    [chip.hbm]                         # HbmSpec of the ChipSpec
    capacity_bytes = "192 GiB"         # a number, or one with a unit (KiB … TiB, kB … TB, GHz)
    bandwidth = "x2"                   # or a factor on what it is

    [topology.axes.row]                # an axis by its name, an engine by its word
    link_bandwidth = "x2"
    [chip.core.engines.vector]
    clock_hz = "1.4 GHz"

    [calibration]                      # constants of the timing model
    collective_base_ns = 1000

Published peak figures, which are for reports only, are dropped where a record under them changes.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from neuronjax.errors import ConfigurationError, quoted
from neuronjax.machine.machine import Machine
from neuronjax.option_values import MOST_CORES
from neuronjax.planning.documents import parse_toml, read_toml
from neuronjax.planning.quantity import replacement
from neuronjax.timing.calibration import CALIBRATION, Calibration

Given = str | Path | Mapping[str, Any] | None
"""A TOML file, or what it would hold, as text or as tables."""

_FIXED = ("name", "version")
"""Fields that other tables are looked up by."""

_REPORTED: Mapping[str, Any] = {"published_tflops": {}, "published_dma_bandwidth": None}
"""Fields that a record checks against others, and their values without a claim."""


def machine_of(target: str, lnc: int | None, given: Given) -> tuple[Machine, Calibration]:
    """The machine of a target, changed; and the constants of the timing model, changed too.

    UnknownTargetError, LogicalCoreError; ConfigurationError: the file is damaged, or names a field
    that does not exist.
    """
    if given is None:
        return Machine.create(target, lnc), CALIBRATION
    changes = dict(read_changes(given))
    base = changes.pop("base", target)
    own_lnc = changes.pop("lnc", None)
    constants = changes.pop("calibration", {})
    machine = Machine.create(base, own_lnc if lnc is None else lnc)
    changed = Machine(_changed(machine.instance, changes, "machine"), machine.lnc)
    if changed.core_count > MOST_CORES:
        raise ConfigurationError(
            f"machine would have {changed.core_count} cores, but at most {MOST_CORES} are "
            "supported. For more, use several machines: give a mesh of that many cores."
        )
    return changed, _changed(CALIBRATION, constants, "calibration")


def read_changes(given: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """The tables of changes. ConfigurationError: the file or the text is damaged."""
    if isinstance(given, Mapping):
        return given
    if not isinstance(given, str | Path):
        raise ConfigurationError(
            f"machine {quoted(given)} is neither a TOML file nor a mapping with such contents."
        )
    is_text = isinstance(given, str) and "=" in given
    return parse_toml("machine", str(given)) if is_text else read_toml("machine", given)


def _changed(record: Any, changes: Any, where: str) -> Any:
    """A record, mapping, tuple or single value with changes."""
    change = next((changing for kind, changing in _CHANGES if isinstance(record, kind)), None)
    if change is None and not dataclasses.is_dataclass(record):
        return replacement(record, changes, where)
    if not isinstance(changes, Mapping):
        raise ConfigurationError(f"{where} is a table; {quoted(changes)} cannot replace it.")
    return (change or _record)(record, changes, where)


def _record(record: Any, changes: Mapping[str, Any], where: str) -> Any:
    kind = type(record).__name__
    names = [field.name for field in dataclasses.fields(record)]
    for name in changes:
        if name not in names:
            raise ConfigurationError(
                f"{where} has no field {quoted(name)}; a {kind} has {', '.join(names)}."
            )
        if name in _FIXED:
            raise ConfigurationError(
                f"{where}.{name} cannot be changed: the documented facts about a {kind} are looked "
                "up by it. Choose another base."
            )
    fields = {name: _changed(getattr(record, name), change, f"{where}.{name}")
             for name, change in changes.items()}  # fmt: skip
    dropped = {name: none for name, none in _REPORTED.items() if name in names and changes}
    try:
        return dataclasses.replace(record, **{**dropped, **fields})
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{where} cannot be changed this way: {error}") from None


def _mapping(record: Mapping[Any, Any], changes: Mapping[str, Any], where: str) -> Any:
    return _with_entries(dict(record), {_word(key): key for key in record}, changes, where)


def _entries(record: tuple[Any, ...], changes: Mapping[str, Any], where: str) -> Any:
    """A tuple of named records, such as axes; entries without a name go by their number."""
    places = {getattr(entry, "name", str(at)): at for at, entry in enumerate(record)}
    return tuple(_with_entries(list(record), places, changes, where))


def _with_entries(
    entries: Any, places: Mapping[str, Any], changes: Mapping[str, Any], where: str
) -> Any:
    """The same list or dictionary, with changed entries at the places of some words."""
    for word, change in changes.items():
        place = _entry(places, word, where)
        entries[place] = _changed(entries[place], change, f"{where}.{word}")
    return entries


def _entry(places: Mapping[str, Any], word: str, where: str) -> Any:
    if word not in places:
        raise ConfigurationError(
            f"{where} has no entry {quoted(word)}; choose one of {', '.join(places)}."
        )
    return places[word]


def _word(key: Any) -> str:
    return str(key.value) if isinstance(key, enum.Enum) else str(key)


_CHANGES: tuple[tuple[type, Callable[[Any, Any, str], Any]], ...] = (
    (Mapping, _mapping),
    (tuple, _entries),
)
