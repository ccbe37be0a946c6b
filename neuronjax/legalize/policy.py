"""The chip and all options of a compilation that affect numerics or legality.

It is made once from the options, which include the compiler flags; this room reads nothing else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from neuronjax import formats
from neuronjax.errors import ConfigurationError
from neuronjax.formats import Format
from neuronjax.machine.specs import ChipSpec
from neuronjax.options import LATEST_SDK, Options, version

_Setting = TypeVar("_Setting")

AUTO_CASTS = ("none", "matmult", "all")
AUTO_CAST_TYPES = {
    "bf16": formats.BFLOAT16,
    "fp16": formats.FLOAT16,
    "tf32": formats.TFLOAT32,
    "fp8_e4m3": formats.FLOAT8_E4M3,
}
DOWNCASTS = ("dot", "scatter", "all_reduce", "reduce_scatter", "pow")
"""Integer operations that are computed in FP32 (``pow``: 32 bits) unless that is forbidden."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Numerics and legality of one compilation. Source: neuronx-cc command line reference."""

    numerics: str = "ieee"
    """``ieee``: the arithmetic of XLA:CPU, untouched; ``chip``: that of the NeuronCore."""
    chip: str = "trainium2"
    core_version: int = 3
    """The n of NeuronCore-v<n>."""
    sdk: tuple[int, ...] = version(LATEST_SDK)
    """Version of the emulated Neuron SDK."""
    legality: str = "off"
    auto_cast: str = "none"
    auto_cast_type: Format = formats.BFLOAT16
    """What ``auto_cast`` casts to."""
    mixed_precision_accumulation: bool = True
    saturate_infinity: bool = False
    native_int64: bool = False
    integer_downcasts: frozenset[str] = frozenset(DOWNCASTS)
    """Which of ``DOWNCASTS`` are allowed."""
    fp8_e4m3fn_as_e4m3: bool = False
    stochastic_rounding: bool = False
    seed: int = 0
    flush_subnormals: bool = False
    fail_on_nan: bool = False
    fail_on_out_of_bounds: bool = False

    @property
    def rounds_stochastically(self) -> bool:
        """Whether FP32 is cast to narrower floats stochastically, which NeuronCore-v2 began."""
        return self.numerics == "chip" and self.stochastic_rounding and self.core_version >= 2

    def digest(self) -> str:
        """A short text that differs between policies, the same in every process."""
        fields = {
            **dataclasses.asdict(self),
            "auto_cast_type": self.auto_cast_type.name,
            "integer_downcasts": sorted(self.integer_downcasts),
        }
        text = json.dumps(fields, sort_keys=True)
        return f"{self.numerics}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def policy_of(options: Options, chip: ChipSpec) -> Policy:
    """The policy of ``options`` on ``chip``.

    Raises:
      ConfigurationError: a compiler flag has a value that is not allowed; the message names both.
    """
    flags = dict(options.cc_flags)
    fields: dict[str, Any] = {}
    for flag, (field, parse) in _FLAGS.items():
        if flag in flags:
            fields[field] = parse(flag, flags[flag])
    if fields.get("native_int64") and chip.core.version < 3:
        raise ConfigurationError(
            f"NEURON_CC_FLAGS --native-int64=enabled needs trn2 or later, the target has "
            f"{chip.core.name}; leave the flag out."
        )
    return Policy(
        numerics=options.numerics,
        chip=chip.name,
        core_version=chip.core.version,
        sdk=version(options.sdk),
        legality=options.legality,
        stochastic_rounding=options.stochastic_rounding,
        seed=options.stochastic_rounding_seed,
        flush_subnormals=options.flush_subnormals,
        fail_on_nan=options.fail_on_nan,
        fail_on_out_of_bounds=options.fail_on_out_of_bounds,
        **fields,
    )


def _refused(flag: str, value: str, allowed: str) -> ConfigurationError:
    return ConfigurationError(
        f"NEURON_CC_FLAGS {flag}={value!r} is not allowed; it must be {allowed}."
    )


def _one_of(choices: Mapping[str, _Setting]) -> Callable[[str, str], _Setting]:
    def parse(flag: str, value: str) -> _Setting:
        if value not in choices:
            raise _refused(flag, value, f"one of {', '.join(choices)}")
        return choices[value]

    return parse


def _present(result: bool) -> Callable[[str, str], bool]:
    def parse(flag: str, value: str) -> bool:
        if value:
            raise _refused(flag, value, "given without a value")
        return result

    return parse


def _downcasts(flag: str, value: str) -> frozenset[str]:
    whole = {"default": frozenset(DOWNCASTS), "all": frozenset(DOWNCASTS), "none": frozenset()}
    if value in whole:
        return whole[value]
    chosen = frozenset(value.split(","))
    if not chosen <= frozenset(DOWNCASTS):
        raise _refused(flag, value, f"default, all, none, or a list of {', '.join(DOWNCASTS)}")
    return chosen


_FLAGS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "--auto-cast": ("auto_cast", _one_of({name: name for name in AUTO_CASTS})),
    "--auto-cast-type": ("auto_cast_type", _one_of(AUTO_CAST_TYPES)),
    "--enable-mixed-precision-accumulation": ("mixed_precision_accumulation", _present(True)),
    "--disable-mixed-precision-accumulation": ("mixed_precision_accumulation", _present(False)),
    "--enable-saturate-infinity": ("saturate_infinity", _present(True)),
    "--native-int64": (
        "native_int64",
        _one_of({"default": False, "disabled": False, "enabled": True}),
    ),
    "--implicit-integer-downcast": ("integer_downcasts", _downcasts),
    "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3": ("fp8_e4m3fn_as_e4m3", _present(True)),
}
"""Compiler flag -> (field, parser of its value)."""
