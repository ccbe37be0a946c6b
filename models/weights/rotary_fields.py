"""Rotary positions as config.json describes them, by the names of transformers 4 and 5."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from models.layers.rotary import Rotary
from models.weights.fields import Fields

OTHER_NAMES = {"su": "longrope"}  # early Phi-3


def read_rotary(
    fields: Fields, parameters: Fields | None = None, *, theta: float | None = None
) -> Rotary:
    """The rotary positions of `rope_scaling` (transformers 4) or `rope_parameters` (5), whose
    base may stand beside them as `rope_theta`.

    `rope_scaling` wins: people add it to a file to stretch its context. `parameters` stands for
    both in models that have several, and `theta` for the base beside them. Only families that know
    `partial_rotary_factor` turn a part of a head. Raises ConfigError for a kind that is not
    supported or a number out of range.
    """
    parameters = parameters or rotary_parameters(fields)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    kind = OTHER_NAMES.get(kind, kind)
    if kind not in _READERS:
        name = "rope_type" if "rope_type" in parameters else "type"
        raise parameters.fail(name, f"choose one of {', '.join(_READERS)}")
    beside = fields.positive_number("rope_theta", 10_000.0) if theta is None else theta
    part = "partial_rotary_factor"
    fraction = 1.0
    if fields.knows(part):
        fraction = parameters.positive_number(part, fields.positive_number(part, 1.0))
    return Rotary(
        theta=parameters.positive_number("rope_theta", beside),
        kind=kind,
        fraction=fraction,
        **_READERS[kind](fields, parameters),
    )


def rotary_parameters(fields: Fields) -> Fields:
    """What a config.json says of its rotary positions; see `read_rotary`."""
    parameters = fields.object("rope_scaling", None)
    if parameters is None or not parameters.values:
        return fields.object("rope_parameters", Fields({}, fields.where))
    return parameters


def score_factor(fields: Fields) -> float:
    """What the scores of attention are multiplied by besides, as DeepSeek's yarn has it."""
    parameters = rotary_parameters(fields)
    scale = parameters.number("mscale_all_dim", 0.0)
    return _yarn_temperature(parameters.number("factor", 1.0), scale) ** 2 if scale else 1.0


def read_rotaries(
    fields: Fields, *, local: float, theta: float | None = None
) -> tuple[Rotary, Rotary]:
    """Rotaries of the layers that see everything and of those with a window: `rope_parameters` has
    an object for each kind. Bases that stand beside them are `theta`, as in `read_rotary`, and
    `local`."""
    nothing = Fields({}, fields.where)
    both = fields.object("rope_parameters", None)
    if both is None:
        return read_rotary(fields, theta=theta), read_rotary(fields, nothing, theta=local)
    full, sliding = (both.object(name, nothing) for name in ("full_attention", "sliding_attention"))
    return read_rotary(fields, full, theta=theta), read_rotary(fields, sliding, theta=local)


def _default(fields: Fields, parameters: Fields) -> dict[str, Any]:
    return {}


def _linear(fields: Fields, parameters: Fields) -> dict[str, Any]:
    return {"factor": parameters.positive_number("factor")}


def _dynamic(fields: Fields, parameters: Fields) -> dict[str, Any]:
    return {
        "factor": parameters.positive_number("factor"),
        "original_length": fields.positive("max_position_embeddings"),
    }


def _llama3(fields: Fields, parameters: Fields) -> dict[str, Any]:
    return {
        "factor": parameters.positive_number("factor"),
        "original_length": _original_length(fields, parameters),
        "low_frequency_factor": parameters.positive_number("low_freq_factor"),
        "high_frequency_factor": parameters.positive_number("high_freq_factor"),
    }


def _yarn_temperature(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def _yarn(fields: Fields, parameters: Fields) -> dict[str, Any]:
    original = _original_length(fields, parameters)
    factor = parameters.positive_number(
        "factor", fields.integer("max_position_embeddings") / original
    )
    temperature = partial(_yarn_temperature, factor)
    scale = parameters.number("mscale", 0.0)
    all_dim = parameters.number("mscale_all_dim", 0.0)
    inferred = temperature(scale) / temperature(all_dim) if scale and all_dim else temperature(1.0)
    return {
        "factor": factor,
        "original_length": original,
        "magnitude": parameters.positive_number("attention_factor", inferred),
        "beta_fast": parameters.positive_number("beta_fast", 32.0),
        "beta_slow": parameters.positive_number("beta_slow", 1.0),
        "truncate": parameters.flag("truncate", True),
    }


def _longrope(fields: Fields, parameters: Fields) -> dict[str, Any]:
    original = _original_length(fields, parameters)
    factor = parameters.positive_number(
        "factor", fields.integer("max_position_embeddings") / original
    )
    inferred = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return {
        "original_length": original,
        "magnitude": parameters.positive_number("attention_factor", inferred),
        "short_factors": parameters.positive_numbers("short_factor"),
        "long_factors": parameters.positive_numbers("long_factor"),
    }


def _original_length(fields: Fields, parameters: Fields) -> int:
    name = "original_max_position_embeddings"
    inner = parameters.positive(name, fields.positive("max_position_embeddings"))
    return fields.positive(name, inner)


_READERS: Mapping[str, Callable[[Fields, Fields], dict[str, Any]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
