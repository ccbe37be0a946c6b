"""Random numbers: generators that the compiler rejects, and functions whose numbers are wrong."""

from __future__ import annotations

from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.rules.operators import KNOWN_ISSUES
from neuronjax.legalize.rules.rule import Rule, Severity, Site, stablehlo

THREEFRY_PARITY = 0x1BD11BDA
"""Constant of Threefry's key schedule (Salmon et al. 2011, "Parallel Random Numbers")."""


def _not_default(site: Site) -> str | None:
    algorithm = str(site.op.attributes["rng_algorithm"])
    return None if "DEFAULT" in algorithm else f"the algorithm is {algorithm}"


def _threefry(site: Site) -> str | None:
    """Matches Threefry's key schedule, except on pairs of keys: an rbg key is a pair of Threefry
    keys, and splitting it runs Threefry on both, which the remedy cannot avoid."""
    keys = list(site.op.results[0].type.shape)
    while keys and keys[-1] == 1:
        keys.pop()
    if keys[-1:] == [2] and len(keys) < len(site.op.results[0].type.shape):
        return None
    is_parity = (site.scalar(operand) == THREEFRY_PARITY for operand in site.op.operands)
    return "" if any(is_parity) else None


def _made_by(value: ir.Value, name: str) -> ir.OpView | None:
    """The op that makes a value if it has that name, else ``None``."""
    if isinstance(value, ir.BlockArgument) or value.owner.name != f"stablehlo.{name}":
        return None
    return value.owner


def _randint(site: Site) -> str | None:
    """``(high % span * multiplier + low % span) % span``, as jax.random.randint computes it."""
    total = _made_by(site.op.operands[0], "add")
    if total is None:
        return None
    for high, low in (tuple(total.operands), tuple(total.operands)[::-1]):
        product = _made_by(high, "multiply")
        if product is None or _made_by(low, "remainder") is None:
            continue
        if any(_made_by(factor, "remainder") for factor in product.operands):
            return ""
    return None


RULES = (
    Rule(
        code="EVRF006",
        what="random bit generators other than RNG_DEFAULT",
        ops=stablehlo("rng_bit_generator"),
        check=_not_default,
        message=(
            "The compiler encountered a RNGBitGenerator operation using a random number generation "
            "algorithm other than RNG_DEFAULT"
        ),
        remedy="Set jax_default_prng_impl to rbg and name no algorithm.",
        source="Neuron compiler error codes, NCC_EVRF006",
    ),
    Rule(
        code="JAX_THREEFRY",
        what="the Threefry generator",
        ops=stablehlo("xor"),
        elements=frozenset({"ui32"}),
        check=_threefry,
        severity=Severity.WARNING,
        message="The Threefry RNG algorithm is not completely supported",
        remedy='Use rbg: jax.config.update("jax_default_prng_impl", "rbg").',
        source=KNOWN_ISSUES,
    ),
    Rule(
        code="JAX_RANDINT",
        what="jax.random.randint",
        ops=stablehlo("remainder"),
        elements=frozenset({"ui8", "ui16", "ui32", "ui64"}),
        check=_randint,
        severity=Severity.WARNING,
        message="jax.random.randint does not produce the expected distribution",
        remedy="Run it on the CPU, or round a uniform number down.",
        source=KNOWN_ISSUES,
    ),
)
