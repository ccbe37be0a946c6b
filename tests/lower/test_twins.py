"""Functions that are called in a row: the calls after the first go to a twin."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pytest

from neuronjax.lower.sync.twins import twinned
from neuronjax.program.text import format as format_program
from neuronjax.program.text import parse
from neuronjax.program.verify import verify
from tests.lower.differential import completed, lowered_function

CALLS = """program "p" target trainium2 lnc 1 {{
  hbm %x : float32[64] argument @0
  hbm %y : float32[64] result @256
  function @f(hbm %from : float32[64], hbm %to : float32[64]) {{
    kernel "copy" {{
      dma_copy dst=%to[0; 1:64] src=%from[0; 1:64]
    }}
  }}
{calls}
}}"""
CALL = "  call @f(%x, %y)"
BETWEEN = """  kernel "other" {
    dma_copy dst=%y[0; 1:64] src=%x[0; 1:64]
  }"""


def called(*nodes: str) -> list[str]:
    program = twinned(parse(CALLS.format(calls="\n".join(nodes))))
    assert not verify(program)
    assert parse(format_program(program)) == program
    return re.findall(r"call @(\w+)", format_program(program))


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ((CALL,), ["f"]),
        ((CALL, CALL, CALL), ["f", "f_again", "f_again"]),
        ((CALL, BETWEEN, CALL), ["f", "f"]),
        ((CALL, CALL, BETWEEN, CALL), ["f", "f_again", "f"]),
        (("  loop i in 3 {", CALL, CALL, "  }"), ["f", "f_again"]),
    ],
)
def test_calls_right_after_the_same_go_to_the_twin(
    nodes: tuple[str, ...], wanted: list[str]
) -> None:
    assert called(*nodes) == wanted


def test_a_layer_after_itself_waits_for_less_than_after_another() -> None:
    def layers(x: jax.Array, weights: Sequence[tuple[jax.Array, jax.Array]]) -> jax.Array:
        for first, second in weights:
            x = x + jnp.tanh(x @ first) @ second
        return x

    weights = [(jnp.zeros((256, 512)), jnp.zeros((512, 256)))] * 4
    program = completed(lowered_function(layers, jnp.zeros((128, 256)), weights)[0])
    sections = format_program(program).split("  function @")[1:]
    functions = {section.partition("(")[0]: section.partition("\n  }")[0] for section in sections}
    twins = [name for name in functions if name.endswith("_again")]
    assert twins
    for name in twins:
        twin, function = functions[name], functions[name.removesuffix("_again")]
        assert twin != function.replace("(", "_again(", 1)
        assert " but " in twin
        assert _without_after(twin) == _without_after(function)


def _without_after(text: str) -> str:
    return re.sub(r" after=\([^)]*\)", "", text.partition("(")[2])
