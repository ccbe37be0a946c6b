"""JAX's tables of lowering rules."""

import jax
import numpy as np
import pytest

from neuronjax.jaxlib_api import PLATFORM, lowering_rules


def test_primitives_with_rules_of_their_own() -> None:
    """They are what the functions of JAX become, and JAX has a rule to take them by."""
    cpu, common = lowering_rules.platform_rules("cpu"), lowering_rules.common_rules()
    for primitive in lowering_rules.CALLBACKS:
        assert primitive in cpu or primitive in common, primitive
    assert lowering_rules.DOT_GENERAL in cpu
    assert lowering_rules.SCALED_MATMUL not in cpu
    names = {primitive.name for primitive in lowering_rules.CALLBACKS}
    jaxpr = jax.make_jaxpr(lambda x: jax.pure_callback(np.sin, x, x))(1.0)
    assert jaxpr.eqns[0].primitive.name in names
    assert jax.make_jaxpr(lambda x: x @ x)(np.eye(2)).eqns[0].primitive is (
        lowering_rules.DOT_GENERAL
    )


def test_rules_are_looked_up_in_the_platforms_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is a function of jax.numpy takes the place of a primitive's."""
    primitive = jax.make_jaxpr(jax.lax.sin)(1.0).eqns[0].primitive
    rule = lowering_rules.rule_of(lambda x, **_: jax.lax.cos(x))
    jax.devices()
    monkeypatch.setitem(lowering_rules.platform_rules(PLATFORM), primitive, rule)
    traced = jax.jit(lambda x: jax.lax.sin(x) * 3).trace(1.0)
    assert "cosine" in traced.lower(lowering_platforms=(PLATFORM,)).as_text()
    assert "cosine" not in traced.lower(lowering_platforms=("cpu",)).as_text()
