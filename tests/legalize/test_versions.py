"""Which chips, SDKs and compiler flags a rule holds for."""

from __future__ import annotations

from typing import Any

import pytest

from neuronjax.legalize.policy import Policy, policy_of
from neuronjax.machine.instances import find_instance
from neuronjax.options import load
from tests.legalize import programs
from tests.legalize.finding import bytecode, found_in
from tests.legalize.programs import Case


def policy_for(target: str, sdk: str = "2.32", flags: str = "") -> Policy:
    environ = {"NEURONJAX_TARGET": target, "NEURONJAX_SDK": sdk, "NEURON_CC_FLAGS": flags}
    return policy_of(load(environ), find_instance(target).chip)


AS_E4M3 = "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3"
TRN3 = "trn3-gen1-ultraserver"


@pytest.mark.parametrize(
    ("code", "program", "policy", "found"),
    [
        ("EVRF051", "e4m3fn", policy_for("trn1.2xlarge"), True),
        ("EVRF051", "e4m3fn", policy_for("inf2.xlarge"), True),
        ("EVRF051", "e4m3fn", policy_for("trn2.3xlarge"), True),
        ("EVRF051", "e4m3fn", policy_for(TRN3), False),
        ("EVRF051", "e4m3fn", policy_for("trn2.3xlarge", flags=AS_E4M3), False),
        ("EVRF051", "e4m3fn", policy_for("trn2.3xlarge", "2.30"), False),
        ("ESPP047", "e4m3fn", policy_for("trn2.3xlarge", "2.30"), True),
        ("ESPP047", "e4m3fn", policy_for("trn2.3xlarge", "2.31"), False),
        ("ESPP047", "e8m0fnu", policy_for("trn2.3xlarge"), True),
        ("ESPP047", "e8m0fnu", policy_for(TRN3), False),
        ("ESPP047", "e5m2", policy_for("inf1.xlarge"), True),
        ("ESPP047", "e5m2", policy_for("trn1.2xlarge"), False),
        ("EVRF052", "e4m3", policy_for(TRN3), False),
        ("EVRF052", "e4m3", Policy(core_version=5), True),
        ("EVRF004", "complex_numbers", policy_for("trn2.3xlarge", "2.31"), True),
        ("EVRF004", "complex_numbers", policy_for("trn2.3xlarge", "2.32"), False),
        ("EVRF004", "fft", policy_for("trn2.3xlarge", "2.32"), True),
        ("EVRF056", "gather_of_iota", policy_for("trn2.3xlarge", "2.29"), True),
        ("EVRF056", "gather_of_iota", policy_for("trn2.3xlarge", "2.28"), False),
        ("RT_OUT_OF_BOUNDS", "gather_of_iota", policy_for("trn2.3xlarge", "2.28"), True),
        ("ESMP002", "gather_of_constant", policy_for("trn2.3xlarge", "2.28"), False),
        ("EVRF031", "scatter_to_iota", policy_for("trn2.3xlarge", "2.28"), True),
        ("EVRF029", "sort", policy_for("trn1.2xlarge"), False),
        ("EVRF016", "integer_scatter_add", policy_for("trn2.3xlarge", "2.31"), True),
        ("EVRF016", "integer_scatter_add", policy_for("trn2.3xlarge", "2.32"), False),
        *(
            ("EVRF035", "integer_dot", policy_for(target, "2.32", f"{flag}={value}"), found)
            for flag in ["--implicit-integer-downcast"]
            for target, value, found in [
                ("trn2.3xlarge", "none", True),
                ("trn2.3xlarge", "scatter,pow", True),
                ("trn2.3xlarge", "dot,pow", False),
                ("trn2.3xlarge", "all", False),
                ("trn2.3xlarge", "default", False),
                ("trn1.2xlarge", "none", False),  # NeuronCore-v2 multiplies 32-bit integers
            ]
        ),
    ],
)
def test_holds_for(code: str, program: str, policy: Policy, found: bool) -> None:
    case = Case("", code, getattr(programs, program), _arguments(program))
    codes = {finding.rule.code for finding in found_in(bytecode(case), policy)}
    assert (code in codes) is found


def _arguments(program: str) -> tuple[Any, ...]:
    return (programs.NUMBERS,) if program.startswith("integer") else (programs.X,)


@pytest.mark.parametrize(
    ("flags", "code", "found"),
    [
        ("", "JAX_INT64", True),
        ("--native-int64=enabled", "JAX_INT64", False),
        ("", "ESFH002", True),
        ("--native-int64=enabled", "ESFH002", False),
    ],
)
def test_native_int64(flags: str, code: str, found: bool) -> None:
    case = Case("", code, programs.large_uint64, x64=True)
    policy = policy_for("trn2.3xlarge", flags=flags)
    codes = {finding.rule.code for finding in found_in(bytecode(case), policy)}
    assert (code in codes) is found
