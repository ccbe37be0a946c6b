"""Settings are fields of frozen dataclasses; flags are defined from the fields.

A field made by `setting` declares its default, its meaning and its allowed values in one place.
Other fields have no flag.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from absl import flags

from launch.errors import SettingsError

Record = TypeVar("Record")

flags.disclaim_key_flags()  # they are those of the program that asks for them, in its --help


def setting(
    default: Any,
    meaning: str,
    *,
    lowest: float | None = None,
    below: float | None = None,
    choices: Iterable[str] | None = None,
) -> Any:
    """A field of a frozen dataclass with a flag of the same name.

    `meaning` is the flag's help; `choices` are the allowed strings.
    """
    limits = {
        "lowest": lowest,
        "below": below,
        "choices": None if choices is None else tuple(choices),
    }
    return field(default=default, metadata={"help": meaning, **limits})


def check_settings(record: Any) -> None:
    """Raises SettingsError if a field has a value that its `setting` does not allow."""
    for entry in fields(record):
        value = getattr(record, entry.name)
        choices, lowest = entry.metadata.get("choices"), entry.metadata.get("lowest")
        if value is None:
            continue
        if choices is not None and value not in choices:
            raise SettingsError(
                f"--{entry.name}={value} is unknown; choose one of {', '.join(choices)}."
            )
        if lowest is not None and not value >= lowest:
            raise SettingsError(f"--{entry.name}={value} must be at least {lowest}.")
        below = entry.metadata.get("below")
        if below is not None and not value < below:
            raise SettingsError(f"--{entry.name}={value} must be less than {below:g}.")


def define_flags(record: Any) -> None:
    """Defines an absl flag for every setting of the record, with the record's value as its
    default."""
    types = get_type_hints(type(record))
    for entry in fields(record):
        if "help" in entry.metadata:
            (kind,) = {*(get_args(types[entry.name]) or (types[entry.name],))} - {NoneType}
            choices = entry.metadata["choices"]
            define: Callable[..., Any] = flags.DEFINE_enum if choices else _DEFINERS[kind]
            limits: dict[str, Any] = {"enum_values": choices} if choices else {}
            if kind in (int, float):
                limits["lower_bound"] = entry.metadata["lowest"]
            define(
                entry.name,
                default=getattr(record, entry.name),
                help=entry.metadata["help"],
                **limits,
            )


def from_flags(record: type[Record], values: Mapping[str, Any]) -> Record:
    """The record with the flags' values by name; missing ones get the record's default."""
    return record(**{name: values[name] for name in names_of(record) if name in values})


def names_of(record: type[Any]) -> list[str]:
    """The names of a record's settings, which are also the names of their flags."""
    return [entry.name for entry in fields(record) if "help" in entry.metadata]


_DEFINERS: Mapping[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
