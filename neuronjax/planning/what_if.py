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
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from neuronjax.errors import ConfigurationError
from neuronjax.machine.machine import Machine
from neuronjax.timing.calibration import CALIBRATION, Calibration

Given = str | Path | Mapping[str, Any] | None
"""A TOML file, or what it would hold."""

_UNITS: Mapping[str, float] = {
    **{f"{prefix}iB": 1 << 10 * power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": 10 ** (3 * power) for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}Hz": 10 ** (3 * power) for power, prefix in enumerate("kMGT", 1)},
}
_WITH_UNIT = re.compile(r"\s*([\d.]+)\s*(\w+)(?:/s)?\s*")
_FACTOR = re.compile(r"\s*x\s*([\d.]+)\s*")

_REPORTED: Mapping[str, Any] = {"published_tflops": {}, "published_dma_bandwidth": None}
"""Fields that a record checks against others, and their values without a claim."""


def machine_of(target: str, lnc: int | None, given: Given) -> tuple[Machine, Calibration]:
    """The machine of a target, changed; and the constants of the timing model, changed too.

    UnknownTargetError, LogicalCoreError; ConfigurationError: the file is damaged, or names a field
    that does not exist.
    """
    if given is None:
        return Machine.create(target, lnc), CALIBRATION
    changes = dict(_read(given))
    base = changes.pop("base", target)
    own_lnc = changes.pop("lnc", None)
    constants = changes.pop("calibration", {})
    machine = Machine.create(base, own_lnc if lnc is None else lnc)
    instance = _changed(machine.instance, changes, "machine")
    return Machine(instance, machine.lnc), _changed(CALIBRATION, constants, "calibration")


def _read(given: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    try:
        return tomllib.loads(Path(given).read_text())
    except OSError as error:
        raise ConfigurationError(f"machine {given}: {error.strerror}; give a TOML file.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"machine {given} is no TOML: {error}") from None


def _changed(record: Any, changes: Any, where: str) -> Any:
    """A record, mapping, tuple or number with changes."""
    for kind, change in _CHANGES:
        if isinstance(record, kind):
            return change(record, changes, where)
    if dataclasses.is_dataclass(record) and isinstance(changes, Mapping):
        return _record(record, changes, where)
    return _scalar(record, changes, where)


def _record(record: Any, changes: Mapping[str, Any], where: str) -> Any:
    names = [field.name for field in dataclasses.fields(record)]
    unknown = sorted(set(changes) - set(names))
    if unknown:
        raise ConfigurationError(
            f"{where} has no field {unknown[0]!r}; a {type(record).__name__} has "
            f"{', '.join(names)}."
        )
    found = {name: _changed(getattr(record, name), each, f"{where}.{name}")
             for name, each in changes.items()}  # fmt: skip
    dropped = {name: none for name, none in _REPORTED.items() if name in names and changes}
    try:
        return dataclasses.replace(record, **{**dropped, **found})
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{where} cannot be changed so: {error}") from None


def _mapping(record: Mapping[Any, Any], changes: Any, where: str) -> Any:
    keys = {_word(key): key for key in record}
    found = dict(record)
    for word, each in changes.items():
        if word not in keys:
            raise ConfigurationError(f"{where} has no entry {word!r}; there are {', '.join(keys)}.")
        found[keys[word]] = _changed(record[keys[word]], each, f"{where}.{word}")
    return found


def _entries(record: tuple[Any, ...], changes: Any, where: str) -> Any:
    """A tuple of named records, such as axes; any other is replaced."""
    if not isinstance(changes, Mapping):
        return tuple(changes)
    names = {getattr(each, "name", str(at)): at for at, each in enumerate(record)}
    found = list(record)
    for name, each in changes.items():
        if name not in names:
            raise ConfigurationError(f"{where} has no {name!r}; there are {', '.join(names)}.")
        found[names[name]] = _changed(record[names[name]], each, f"{where}.{name}")
    return tuple(found)


def _word(key: Any) -> str:
    return str(key.value) if isinstance(key, enum.Enum) else str(key)


_CHANGES: tuple[tuple[type, Callable[[Any, Any, str], Any]], ...] = (
    (Mapping, _mapping),
    (tuple, _entries),
)


def _scalar(record: Any, value: Any, where: str) -> Any:
    if isinstance(record, enum.Enum):
        return _member(record, value, where)
    if isinstance(value, str) and not isinstance(record, str):
        value = _number(record, value, where)
    if isinstance(value, Mapping) or isinstance(value, str) is not isinstance(record, str):
        raise ConfigurationError(f"{where} is {record!r}; {value!r} cannot replace it.")
    whole = isinstance(record, int) and float(value).is_integer()
    return int(value) if whole and not isinstance(record, bool) else value


def _member(record: enum.Enum, value: Any, where: str) -> enum.Enum:
    try:
        return type(record)(value)
    except ValueError:
        allowed = ", ".join(str(each.value) for each in type(record))
        raise ConfigurationError(f"{where}={value!r}: there are {allowed}.") from None


def _number(record: Any, text: str, where: str) -> float:
    """A factor on the number that is there, or a number with a unit."""
    factor = _FACTOR.fullmatch(text)
    if factor:
        return float(record) * float(factor[1])
    sized = _WITH_UNIT.fullmatch(text)
    if sized and sized[2] in _UNITS:
        return float(sized[1]) * _UNITS[sized[2]]
    raise ConfigurationError(
        f'{where}={text!r} is no number; write a number, a factor as "x2", or a number with one '
        f"of the units {', '.join(_UNITS)}."
    )
