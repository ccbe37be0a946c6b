"""Compiler flags and options as the policy of a compilation."""

import pytest

from neuronjax.errors import ConfigurationError
from neuronjax.formats import TFLOAT32
from neuronjax.legalize.policy import DOWNCASTS, Policy, policy_of
from neuronjax.machine.instances import find_instance
from neuronjax.options import load


def _policy(flags: str, target: str = "trn2.3xlarge") -> Policy:
    return policy_of(load({"NEURON_CC_FLAGS": flags}), find_instance(target).chip)


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("", "auto_cast", "none"),
        ("--auto-cast=matmult", "auto_cast", "matmult"),
        ("--auto-cast all --auto-cast-type tf32", "auto_cast_type", TFLOAT32),
        ("--disable-mixed-precision-accumulation", "mixed_precision_accumulation", False),
        ("--enable-mixed-precision-accumulation", "mixed_precision_accumulation", True),
        ("--enable-saturate-infinity", "saturate_infinity", True),
        ("--native-int64=enabled", "native_int64", True),
        ("--native-int64=default", "native_int64", False),
        ("--implicit-integer-downcast=none", "integer_downcasts", frozenset()),
        ("--implicit-integer-downcast=default", "integer_downcasts", frozenset(DOWNCASTS)),
        ("--implicit-integer-downcast=dot,pow", "integer_downcasts", frozenset({"dot", "pow"})),
        ("--experimental-unsafe-fp8e4m3fn-as-fp8e4m3", "fp8_e4m3fn_as_e4m3", True),
    ],
)
def test_flags(flags: str, field: str, value: object) -> None:
    assert getattr(_policy(flags), field) == value


@pytest.mark.parametrize(
    ("target", "chip", "version"),
    [
        ("trn1.32xlarge", "trainium1", 2),
        ("trn2.3xlarge", "trainium2", 3),
        ("inf1.2xlarge", "inferentia1", 1),
    ],
)
def test_chip(target: str, chip: str, version: int) -> None:
    policy = _policy("", target)
    assert (policy.chip, policy.core_version) == (chip, version)


@pytest.mark.parametrize(
    ("flags", "target", "message"),
    [
        ("--auto-cast=matmul", "trn2.3xlarge", "--auto-cast='matmul' .* none, matmult, all"),
        ("--auto-cast-type=fp8", "trn2.3xlarge", "one of bf16, fp16, tf32, fp8_e4m3"),
        ("--native-int64=1", "trn2.3xlarge", "one of default, disabled, enabled"),
        ("--native-int64=enabled", "trn1.32xlarge", "needs trn2 or later"),
        ("--implicit-integer-downcast=sum", "trn2.3xlarge", "a list of dot, scatter"),
        ("--enable-saturate-infinity=1", "trn2.3xlarge", "given without a value"),
    ],
)
def test_refused(flags: str, target: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _policy(flags, target)
