"""Settings are fields of frozen records; flags are made of the fields.

A field made by `setting` says its default, its meaning and what values it may have, once. Fields
without it have no flag.
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
    choices: Iterable[str] | None = None,
) -> Any:
    """A field of a frozen record with a flag of its name.

    `meaning` is the flag's help; `choices` are what a text may be.
    """
    limits = {"lowest": lowest, "choices": None if choices is None else tuple(choices)}
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


def define_flags(record: Any) -> None:
    """An absl flag for every setting of the record, whose default is the record's value."""
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
    """The record of flags' values by name; what is not there has the record's default."""
    return record(**{name: values[name] for name in names_of(record) if name in values})


def names_of(record: type[Any]) -> list[str]:
    """The names of the settings of a record, which are those of their flags."""
    return [entry.name for entry in fields(record) if "help" in entry.metadata]


_DEFINERS: Mapping[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
