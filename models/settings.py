"""Fields of model configs: each declares its name in config.json, its meaning and its range.

settings.json has the names of config.json with their meanings, by the range of their values.
Reading and writing config.json follow from the fields; defaults.json says which of the names a
family knows.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from models.errors import ConfigError
from models.layers.activations import ACTIVATIONS
from models.weights.fields import Fields, read_dtype

T = TypeVar("T")
SETTING = "setting"


@dataclass(frozen=True)
class Range:
    """Numbers from `lowest` to `highest`, both included; NaN is never among them."""

    lowest: float
    highest: float

    def __contains__(self, value: float) -> bool:
        return self.lowest <= value <= self.highest

    def __str__(self) -> str:
        return f"a number from {self.lowest:g} to {self.highest:g}"


class OneOf(tuple[Any, ...]):
    """The values that a setting may have."""

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self))}"


TOKENS = Range(1, 2**31 - 1)  # of a vocabulary or a text: tokens and positions are int32
WIDTH = Range(1, 2**24)
LAYERS = Range(1, 10_000)  # all are built, one after another
COUNT = Range(0, 2**24)
EPS = Range(0, 1)
DEVIATION = Range(0, 1e6)  # of initial weights
FINITE = Range(-1e30, 1e30)
POSITIVE = Range(1e-30, 1e30)
ACTIVATION = OneOf(sorted(ACTIVATIONS))
_RANGES: Mapping[str, Range | OneOf | None] = {
    "tokens": TOKENS,
    "width": WIDTH,
    "layers": LAYERS,
    "count": COUNT,
    "eps": EPS,
    "deviation": DEVIATION,
    "finite": FINITE,
    "positive": POSITIVE,
    "stride": OneOf((8, 16, 32)),
    "activation": ACTIVATION,
    "any": None,
}
_KNOWN = {
    key: (meaning, _RANGES[kind])
    for kind, keys in json.loads(Path(__file__).with_suffix(".json").read_text()).items()
    for key, meaning in keys.items()
}


@dataclass(frozen=True)
class Setting:
    """The metadata of a field: its name in config.json, if it has one, its meaning and its
    range."""

    key: str | None
    meaning: str
    range: Range | OneOf | None


def setting(
    key: str | None,
    meaning: str | None = None,
    within: Range | OneOf | None = None,
    *,
    default: Any = MISSING,
) -> Any:
    """A field of a frozen dataclass, with the meaning and the range of its key unless others are
    given. Every number of a tuple must lie within the range."""
    if meaning is None:
        meaning, within = _KNOWN[key or ""]
    return field(default=default, metadata={SETTING: Setting(key, meaning, within)})


def check_settings(record: Any) -> None:
    """Raises ConfigError if a field of the record lies outside its range."""
    for name, known in _settings(type(record)).items():
        value = getattr(record, name)
        if not _fits(value, known):
            key = "" if known.key is None else f", {known.key!r} in config.json"
            raise ConfigError(f"{name}={value!r} ({known.meaning}{key}) must be {known.range}")


def check_multiple(record: Any, whole: str, part: str) -> None:
    """Raises ConfigError unless one field, a number or a tuple, is a multiple of another. Of tuples
    the numbers at the same places are compared."""
    wholes, parts = (
        value if isinstance(value, tuple) else (value,)
        for value in (getattr(record, whole), getattr(record, part))
    )
    parts = parts * len(wholes) if len(parts) == 1 else parts
    if any(n % by for n, by in zip(wholes, parts, strict=False)):
        raise ConfigError(
            f"{whole}={getattr(record, whole)} is not a multiple of {part}={getattr(record, part)}"
        )


def check_counts(record: Any, names: Iterable[str], count: int, of: str) -> None:
    """Raises ConfigError unless each of these fields has `count` values, one for each `of`."""
    for name in names:
        if len(getattr(record, name)) != count:
            raise ConfigError(
                f"{name}={getattr(record, name)} has {len(getattr(record, name))} values, but "
                f"needs {count}: one for each {of}"
            )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What the configs of most models have. Raises ConfigError for a value out of its range."""

    dtype: str = "float32"  # of activations and matmul operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)


def read_settings(
    record: type[Any],
    values: Fields,
    *,
    otherwise: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The arguments for `record` that `values` gives, by field name.

    Names in config.json that the family does not know are ignored. `otherwise` is for fields that
    are null or unknown, `given` for fields that config.json does not decide. Raises ConfigError
    for a value of the wrong type or out of range.
    """
    otherwise = otherwise or {}
    arguments = {**otherwise, **(given or {})}
    types = get_type_hints(record)
    for name, known in _settings(record).items():
        if name in (given or {}) or known.key is None or not values.knows(known.key):
            continue
        value = _READERS[_kind(types[name])](values, known.key, otherwise.get(name))
        if value is None and NoneType not in get_args(types[name]):
            raise values.fail(known.key, f"it must be {known.range or 'given'}")
        if not _fits(value, known):
            raise values.fail(known.key, f"it must be {known.range}")
        arguments[name] = value
    return arguments


def read_layers(values: Fields) -> range:
    """The numbers of all layers. Raises ConfigError if there are too many, before anything is made
    for each of them."""
    count = values.integer("num_hidden_layers")
    if count not in LAYERS:
        raise values.fail("num_hidden_layers", f"it must be {LAYERS}")
    return range(count)


def layers_of_kind(
    values: Fields, otherwise: Callable[[int], bool], kind: str = "sliding_attention"
) -> tuple[int, ...]:
    """Layers with a sliding window, or another kind of attention besides the full one: those of
    `layer_types`, or where `otherwise` holds."""
    layers = tuple(read_layers(values))
    if "layer_types" not in values:
        return tuple(filter(otherwise, layers))
    types = values.list("layer_types")
    known = sorted(("full_attention", kind))
    if len(types) < len(layers) or not all(name in known for name in types):
        raise values.fail("layer_types", f"it must name one of {known} for each layer")
    return tuple(i for i in layers if types[i] == kind)


def read_model(record: type[T], values: Fields, **given: Any) -> T:
    """A model's config from `values` and `given`; `dtype` is the dtype of the weights."""
    dtype = read_dtype(values)
    everything = {"dtype": dtype, "param_dtype": dtype, **given}
    return record(**read_settings(record, values, given=everything))


def write_settings(record: Any) -> dict[str, Any]:
    """The fields of config.json that represent the record."""
    return {
        known.key: list(value) if isinstance(value, tuple) else value
        for name, known in _settings(type(record)).items()
        if known.key is not None and (value := getattr(record, name)) is not None
    }


def _settings(record: type[Any]) -> dict[str, Setting]:
    return {
        entry.name: entry.metadata[SETTING] for entry in fields(record) if SETTING in entry.metadata
    }


def _fits(value: Any, known: Setting) -> bool:
    if value is None or known.range is None:
        return True
    several = isinstance(value, Sequence) and not isinstance(value, str)
    return all(number in known.range for number in (value if several else [value]))


def _kind(hint: Any) -> Any:
    """The type of what a field holds, besides None."""
    if isinstance(hint, UnionType):
        (hint,) = set(get_args(hint)) - {NoneType}
    return get_args(hint) if get_origin(hint) is tuple else hint


_READERS: Mapping[Any, Any] = {
    int: Fields.integer,
    float: Fields.number,
    bool: Fields.flag,
    str: Fields.text,
    (int, int): Fields.pair,
    (int, ...): Fields.integers,
    (float, ...): Fields.positive_numbers,
    (bool, ...): Fields.flags,
}
