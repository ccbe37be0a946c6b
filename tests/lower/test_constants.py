"""Operations on constants alone, which compute in the type of the constants, against XLA:CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.emulate.core import run
from neuronjax.errors import UnsupportedProgramError
from neuronjax.program.text import parse
from neuronjax.program.verify import verify
from tests.lower.differential import check

X = np.arange(20, dtype=np.float32)

CASES: dict[str, Callable[..., Any]] = {
    "negative index": lambda x: x[jnp.int32(-3)],
    "take": lambda x: jnp.take(x, -3),
    "slice with a negative start": lambda x: lax.dynamic_slice(x, (-3,), (2,)),
    "update with a negative start": lambda x: lax.dynamic_update_slice(x, x[:2] * 9, (-2,)),
    "compared and selected": lambda x: x + jnp.where(jnp.float32(-0.5) < 0, 1.0, 2.0),
    "the next number": lambda x: lax.nextafter(x, jnp.float32(np.inf)),
    "is finite": lambda x: (jnp.isfinite(jnp.float32(np.inf)), jnp.isfinite(jnp.float32(3)), x),
    "is infinite": lambda x: (jnp.isneginf(jnp.float32(-np.inf)), jnp.isposinf(-np.inf), x),
    "as truth values": lambda x: (jnp.float32(0.25).astype(bool), jnp.int32(256).astype(bool), x),
    "to integers": lambda x: (jnp.float32(-2.75).astype(jnp.int32), jnp.int32(-1).astype("u1"), x),
    "signed and unsigned": lambda x: (
        jnp.int32(-8) // 3, jnp.uint32(2**32 - 8) // jnp.uint32(3), jnp.int8(-128) - jnp.int8(1), x,
    ),
    "chosen by a constant": lambda x: lax.select(
        jnp.full(x.shape, True), x.astype(jnp.int32), jnp.full(x.shape, 7)
    ),
    "a sum of equals": lambda x: (jnp.full((3, 20), 0.1).sum(1), jnp.full((3,), 2.0).sum() + x),
    "a product of equals": lambda x: jnp.full((3, 20), 1.5).prod(0) * x,
    "the greatest of equals": lambda x: (jnp.full((4,), -2.0).max(), jnp.full((4,), True).any(), x),
    "a sum of rounded equals": lambda x: (
        jnp.full((4,), 0.1).astype(jnp.bfloat16).astype(jnp.float32).sum() + x
    ),
    "a sum of equals from a number": lambda x: lax.reduce(
        jnp.full((4, 20), 2.0), x[3], lax.add, (0,)
    ),
    "inverted twice": lambda x: lax.fori_loop(
        0, 2, lambda i, state: (~state[0], ~state[1], state[2] + 1), (False, jnp.int32(5), x)
    ),
    "a remainder": lambda x: (jnp.remainder(jnp.float32(-7.5), 2), lax.rem(jnp.int32(-7), 2), x),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_constants(name: str) -> None:
    program = check(CASES[name], X)
    assert verify(program) == ()


def test_constants_without_a_type_are_refused() -> None:
    program = parse("""program "p" target trainium2 lnc 1 {
  kernel "k" {
    sbuf %t : uint8[1, 1] @0
    custom_op dst=%t[0; 1:1] function=compare_lt srcs=(#-1, #0)
  }
}
""")
    assert any("without a type" in str(finding) for finding in verify(program))
    with pytest.raises(UnsupportedProgramError, match="such as #1 as int32"):
        run(program, [{}])


def test_truncated_normal_of_a_user() -> None:
    """What every initialisation of a Flax model takes."""
    key = jax.random.key_data(jax.random.key(0))
    check(
        lambda k: jax.random.truncated_normal(jax.random.wrap_key_data(k), -2, 2, (40,)) * 0.0, key
    )
