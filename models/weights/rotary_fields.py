"""Rotary positions as config.json describes them, by the names of transformers 4 and 5."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from models.layers.rotary import Rotary
from models.weights.fields import Fields

OTHER_NAMES = {"su": "longrope"}  # early Phi-3


def read_rotary(
    fields: Fields, *, theta: float = 10_000.0, parameters: Fields | None = None
) -> Rotary:
    """The rotary positions of `rope_parameters` (transformers 5), or of `rope_theta` and
    `rope_scaling` (4); `theta` is the base if none is given.

    `parameters` stands for `rope_parameters` in models that have several. Raises ConfigError for
    a kind that is not supported.
    """
    if parameters is None:
        parameters = fields.object("rope_parameters", None)
    if parameters is None:
        parameters = fields.object("rope_scaling", Fields({}, fields.where))
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    kind = OTHER_NAMES.get(kind, kind)
    if kind not in _READERS:
        name = "rope_type" if "rope_type" in parameters else "type"
        raise parameters.fail(name, f"supported are {', '.join(_READERS)}")
    fraction = fields.number("partial_rotary_factor", 1.0)
    return Rotary(
        theta=parameters.number("rope_theta", fields.number("rope_theta", theta)),
        kind=kind,
        fraction=parameters.number("partial_rotary_factor", fraction),
        **_READERS[kind](fields, parameters),
    )


def _default(fields: Fields, parameters: Fields) -> dict[str, Any]:
    return {}


def _linear(fields: Fields, parameters: Fields) -> dict[str, Any]:
    return {"factor": parameters.number("factor")}


def _llama3(fields: Fields, parameters: Fields) -> dict[str, Any]:
    return {
        "factor": parameters.number("factor"),
        "original_length": _original_length(fields, parameters),
        "low_frequency_factor": parameters.number("low_freq_factor"),
        "high_frequency_factor": parameters.number("high_freq_factor"),
    }


def _yarn(fields: Fields, parameters: Fields) -> dict[str, Any]:
    original = _original_length(fields, parameters)
    factor = parameters.number("factor", fields.integer("max_position_embeddings") / original)

    def temperature(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    scale = parameters.number("mscale", 0.0)
    all_dim = parameters.number("mscale_all_dim", 0.0)
    inferred = temperature(scale) / temperature(all_dim) if scale and all_dim else temperature(1.0)
    return {
        "factor": factor,
        "original_length": original,
        "magnitude": parameters.number("attention_factor", inferred),
        "beta_fast": parameters.number("beta_fast", 32.0),
        "beta_slow": parameters.number("beta_slow", 1.0),
        "truncate": parameters.flag("truncate", True),
    }


def _longrope(fields: Fields, parameters: Fields) -> dict[str, Any]:
    original = _original_length(fields, parameters)
    factor = parameters.number("factor", fields.integer("max_position_embeddings") / original)
    inferred = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return {
        "original_length": original,
        "magnitude": parameters.number("attention_factor", inferred),
        "short_factors": tuple(float(factor) for factor in parameters.list("short_factor")),
        "long_factors": tuple(float(factor) for factor in parameters.list("long_factor")),
    }


def _original_length(fields: Fields, parameters: Fields) -> int:
    name = "original_max_position_embeddings"
    inner = parameters.positive(name, fields.positive("max_position_embeddings"))
    return fields.positive(name, inner)


_READERS: Mapping[str, Callable[[Fields, Fields], dict[str, Any]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
