"""The list of passes: what each leaves is checked, and a pass that is wrong is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.engine_compiler import lower_program, prices_of
from neuronjax.errors import FailedPassError
from neuronjax.hlo import module as hlo
from neuronjax.hlo.graph import Graph, Op
from neuronjax.lower import passes
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.passes import PASSES, Pass, Setting
from neuronjax.lower.tuning import Tuning
from neuronjax.program.program import Kernel, Node, Program, Split, Target
from tests.lower.differential import CHIP, sent


def _layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.tanh(x @ w) @ w.T)


@pytest.fixture(scope="module")
def code() -> bytes:
    x, w = np.ones((300, 200), np.float32), np.ones((200, 300), np.float32)
    return sent(jax.jit(_layer).trace(x, w))


@pytest.mark.parametrize("lnc", [1, 2])
def test_every_pass_leaves_what_its_verifier_takes(code: bytes, lnc: int) -> None:
    seen: dict[str, str] = {}

    def watch(step: Pass, state: Any) -> None:
        seen[step.name] = passes.shown(state)

    lower_program(code, Target(CHIP, lnc), 1, verify_passes=True, watch=watch)
    assert list(seen) == [each.name for each in PASSES]
    assert all(each.contract for each in PASSES)
    assert "dot_general" in seen["read"]
    assert "nc_matmul" in seen["write"]
    assert "!" not in seen["allocate"]


def _without_first(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Without the first instruction of the first kernel: what it loads is not there."""
    first, *others = nodes
    if isinstance(first, Split):
        return (dataclasses.replace(first, kernels=_without_first(first.kernels)), *others)
    assert isinstance(first, Kernel)
    return (dataclasses.replace(first, body=first.body[1:]), *others)


def _forgetful(program: Program, setting: Setting) -> Program:
    return dataclasses.replace(program, body=_without_first(program.body))


def _unordered(graph: Graph, setting: Setting) -> Graph:
    operations: list[Op] = graph.operations
    operations.reverse()
    return graph


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("join", _forgetful, "nothing has been written"),
        ("native", _unordered, "that nothing before it makes"),
    ],
)
def test_a_wrong_pass_is_named_with_its_instruction(
    code: bytes, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any, words: str
) -> None:
    changed = tuple(
        dataclasses.replace(each, run=lambda s, t, run=each.run: wrong(run(s, t), t))
        if each.name == name
        else each
        for each in PASSES
    )
    count = len(passes._TO_PROGRAM)
    monkeypatch.setattr(passes, "_TO_PROGRAM", changed[:count])
    monkeypatch.setattr(passes, "_TO_THE_END", changed[count:])
    with pytest.raises(FailedPassError, match=f"pass '{name}' .*") as caught:
        lower_program(code, Target(CHIP), 1, verify_passes=True)
    assert words in str(caught.value)


def test_finished_programs_are_always_checked(code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def overlapping(program: Program, *, check: bool, tuning: Tuning) -> Program:
        buffers = tuple(dataclasses.replace(each, address=0) for each in program.buffers)
        return allocate(dataclasses.replace(program, buffers=buffers), check=check, tuning=tuning)

    with hlo.context():
        setting = Setting(target=Target(CHIP), prices=prices_of)
        program = passes.lower(hlo.load(code), setting)
    monkeypatch.setattr(passes, "allocate", overlapping)
    with pytest.raises(FailedPassError, match=r"'overlap'.* lies where .* in hbm"):
        passes.complete(passes.arrange(program, setting), setting)
