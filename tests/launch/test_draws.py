"""The keys of the example programs: drawing with them is nothing the compiler warns of."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from launch import draws
from neuronjax.hlo import module as hlo
from neuronjax.legalize import report
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.rules.rule import Severity
from tests.conftest import RunPython
from tests.legalize.finding import bytecode
from tests.legalize.programs import Case


def test_first_weights_are_drawn_without_a_warning(run_python: RunPython) -> None:
    done = run_python(
        """
        import jax
        from launch import draws
        with draws.without_threefry_warning():
            jax.jit(lambda: jax.random.normal(jax.random.key(3), (3,)))()
        jax.jit(lambda: jax.random.normal(jax.random.key(3), (4,)))()
        """,
        {"NEURONJAX_LEGALITY": "warn"},
    )
    assert [line.count("JAX_THREEFRY") for line in done.stderr.splitlines() if "[JAX_" in line] == [
        1
    ]
    assert ":6: LegalityWarning" in done.stderr


@pytest.mark.parametrize(
    ("make_key", "codes"), [(draws.key, set()), (jax.random.key, {"JAX_THREEFRY"})]
)
def test_drawing_warns_of_threefry_alone(
    make_key: Callable[[int], jax.Array], codes: set[str]
) -> None:
    key = make_key(7)

    def draw(bits: jax.Array) -> jax.Array:
        own = jax.random.wrap_key_data(bits, impl=jax.random.key_impl(key))
        first, second = jax.random.split(jax.random.fold_in(own, 3))
        tokens = jax.random.categorical(first, jnp.zeros((2, 50)))
        return tokens + jax.random.normal(second, (2,))

    with hlo.context():
        code = bytecode(Case("", "", draw, (jax.random.key_data(key),)))
        findings = report.findings(hlo.load(code), Policy())
    assert {f.rule.code for f in findings if f.rule.severity is not Severity.NOTE} == codes
