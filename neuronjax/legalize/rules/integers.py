"""Operations without an integer datapath: they run in FP32 (or 32 bits) unless that is forbidden.

``--implicit-integer-downcast`` lists the operations for which that is allowed, by default all of
them. If it is allowed, numbers may differ; if not, the program does not compile.
"""

from __future__ import annotations

from neuronjax.hlo.calls import terminator
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.rules.operators import KNOWN_ISSUES
from neuronjax.legalize.rules.rule import NEVER, Check, Rule, Severity, Site, stablehlo

WIDE = frozenset({"i32", "ui32", "i64", "ui64"})
_LONG = frozenset({"i64", "ui64"})
_NARROW = frozenset({"i1", "i2", "i4", "i8", "i16", "ui2", "ui4", "ui8", "ui16"})
_CORE_V3 = 3
_FLAG = "--implicit-integer-downcast"
_ERRORS = "Neuron compiler error codes"
_REFERENCE = "neuronx-cc command line reference, --implicit-integer-downcast"


def _allowed(operation: str, types: frozenset[str], allowed: bool) -> Check:
    """Matches integer operands if the policy's permission of ``operation`` is ``allowed``."""

    def check(site: Site) -> str | None:
        if (operation in site.policy.integer_downcasts) is not allowed:
            return None
        return _operands(site, types)

    return check


def _operands(site: Site, types: frozenset[str]) -> str | None:
    matching = site.program.elements(site.op.operands) & types
    return f"the operands are {', '.join(sorted(matching))}" if matching else None


def _dot_refused(site: Site) -> str | None:
    """NeuronCore-v2 multiplies 32-bit integers; later ones do not (page of NCC_EVRF035)."""
    types = WIDE if site.policy.core_version >= _CORE_V3 else _LONG
    return None if "dot" in site.policy.integer_downcasts else _operands(site, types)


def _dot_in_fp32(site: Site) -> str | None:
    return None if _dot_refused(site) else _operands(site, WIDE)


def _computes(op: ir.Operation) -> bool:
    """Whether a scatter combines values rather than overwriting them."""
    result = terminator(op).operands[0]
    return not isinstance(result, ir.BlockArgument)


def _combined(types: frozenset[str], *, allowed: bool | None = None) -> Check:
    """Matches scatters that compute with ``types``, if the policy's permission is ``allowed``."""

    def check(site: Site) -> str | None:
        if allowed is not None and ("scatter" in site.policy.integer_downcasts) is not allowed:
            return None
        if not _computes(site.op):
            return None
        matching = site.program.elements(site.op.results) & types
        return f"it combines {', '.join(sorted(matching))}" if matching else None

    return check


_SCATTER_REFUSED = (
    "Scatter does not support 32-bit or 64-bit integer operands on this target; they are converted "
    "to f32, which loses precision for values larger than 2^24"
)
_REDUCE_REFUSED = (
    "{} performs its reduction compute in floating point (f32) and does not support 32-bit or "
    "64-bit integer operands on this target; integer values lose precision for magnitudes larger "
    "than 2^24"
)
_IN_FP32 = "{} of integers run in FP32 and lose values larger than 2^24"
_CAST = "Cast the operands to a floating-point type, or allow it with NEURON_CC_FLAGS={}={}."

RULES = (
    Rule(
        code="EVRF035",
        what="integer matrix products, where FP32 is forbidden",
        ops=stablehlo("dot_general", "dot"),
        check=_dot_refused,
        sdks=((2, 32), NEVER),
        message="Opcode (dot) does not support 32-bit or 64-bit integer operands on this target",
        remedy=_CAST.format(_FLAG, "dot"),
        source=f"{_ERRORS}, NCC_EVRF035",
    ),
    Rule(
        code="JAX_INT_DOT",
        what="integer matrix products in FP32",
        ops=stablehlo("dot_general", "dot"),
        check=_dot_in_fp32,
        severity=Severity.NOTE,
        message=_IN_FP32.format("Matrix products"),
        remedy="Cast the operands to a floating-point type.",
        source=f"{KNOWN_ISSUES} (dot operations on int dtypes); {_REFERENCE}",
    ),
    Rule(
        code="JAX_SMALL_INT_DOT",
        what="matrix products of integers of less than 32 bits",
        ops=stablehlo("dot_general", "dot"),
        check=lambda site: _operands(site, _NARROW),
        severity=Severity.WARNING,
        message="Dot operations on int dtypes are not supported",
        remedy="Cast the operands to a floating-point type.",
        source=KNOWN_ISSUES,
    ),
    Rule(
        code="EVRF016",
        what="scatters that compute with integers or booleans, before SDK 2.32",
        ops=stablehlo("scatter"),
        check=_combined(WIDE | _NARROW),
        sdks=((0,), (2, 32)),
        message=(
            "The scatter-reduce operation cannot perform reduction logic if the data being "
            "scattered or the destination tensor is using an integer or boolean data type"
        ),
        remedy="Cast the operands to a floating-point type.",
        source=f"{_ERRORS}, NCC_EVRF016",
    ),
    Rule(
        code="EVRF016",
        what="scatters that compute with booleans or integers of less than 32 bits",
        ops=stablehlo("scatter"),
        check=_combined(_NARROW),
        sdks=((2, 32), NEVER),
        message=(
            "The scatter-reduce operation cannot perform reduction logic if the data being "
            "scattered or the destination tensor is using an integer or boolean data type"
        ),
        remedy="Cast the operands to a floating-point type.",
        source=f"{_ERRORS}, NCC_EVRF016; {_FLAG} is about 32 and 64 bits",
    ),
    Rule(
        code="EVRF060",
        what="scatters that compute with integers, where FP32 is forbidden",
        ops=stablehlo("scatter"),
        check=_combined(WIDE, allowed=False),
        sdks=((2, 32), NEVER),
        message=_SCATTER_REFUSED,
        remedy=_CAST.format(_FLAG, "scatter"),
        source=f"{_ERRORS}, NCC_EVRF060",
    ),
    Rule(
        code="JAX_INT_SCATTER",
        what="scatters that compute with integers in FP32",
        ops=stablehlo("scatter"),
        check=_combined(WIDE, allowed=True),
        severity=Severity.NOTE,
        sdks=((2, 32), NEVER),
        message=_IN_FP32.format("Scatters that compute"),
        remedy="Cast the operands to a floating-point type.",
        source=_REFERENCE,
    ),
    Rule(
        code="EVRF061",
        what="integer all-reduces, where FP32 is forbidden",
        ops=stablehlo("all_reduce"),
        check=_allowed("all_reduce", WIDE, False),
        sdks=((2, 32), NEVER),
        message=_REDUCE_REFUSED.format("AllReduce"),
        remedy=_CAST.format(_FLAG, "all_reduce"),
        source=f"{_ERRORS}, NCC_EVRF061",
    ),
    Rule(
        code="JAX_INT_ALL_REDUCE",
        what="integer all-reduces in FP32",
        ops=stablehlo("all_reduce"),
        check=_allowed("all_reduce", WIDE, True),
        severity=Severity.NOTE,
        message=_IN_FP32.format("All-reduces"),
        remedy="Keep what is summed below 2^24.",
        source=_REFERENCE,
    ),
    Rule(
        code="EVRF063",
        what="integer reduce-scatters, where FP32 is forbidden",
        ops=stablehlo("reduce_scatter"),
        check=_allowed("reduce_scatter", WIDE, False),
        sdks=((2, 32), NEVER),
        message=_REDUCE_REFUSED.format("ReduceScatter"),
        remedy=_CAST.format(_FLAG, "reduce_scatter"),
        source=f"{_ERRORS}, NCC_EVRF063",
    ),
    Rule(
        code="JAX_INT_REDUCE_SCATTER",
        what="integer reduce-scatters in FP32",
        ops=stablehlo("reduce_scatter"),
        check=_allowed("reduce_scatter", WIDE, True),
        severity=Severity.NOTE,
        message=_IN_FP32.format("Reduce-scatters"),
        remedy="Keep what is summed below 2^24.",
        source=_REFERENCE,
    ),
    Rule(
        code="EVRF062",
        what="powers of 64-bit integers, where 32 bits are forbidden",
        ops=stablehlo("power"),
        check=_allowed("pow", _LONG, False),
        sdks=((2, 32), NEVER),
        message=(
            "Opcode (power) does not support 64-bit integer operands on this target; they are "
            "downcast to 32-bit integer, which loses precision for values larger than 2^31"
        ),
        remedy=f"Use int32, or allow it with NEURON_CC_FLAGS={_FLAG}=pow.",
        source=f"{_ERRORS}, NCC_EVRF062",
    ),
    Rule(
        code="JAX_DOT_ALGORITHM",
        what="precision algorithms of matrix products",
        ops=stablehlo("dot_general"),
        check=lambda site: (
            str(site.op.attributes["algorithm"]) if "algorithm" in site.op.attributes else None
        ),
        severity=Severity.NOTE,
        message="lax.DotAlgorithmPreset is not always respected: dots run in their operands' types",
        remedy="Cast the operands to the type that the product should be computed in.",
        source=KNOWN_ISSUES,
    ),
)
