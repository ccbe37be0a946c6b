"""Kernels on two physical cores in time: beside each other, and all of their work counted."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from neuronjax.engine_compiler import lower_program
from neuronjax.program.program import Kernel, Program, Split, Target
from neuronjax.program.text import parse
from neuronjax.timing.platform import Platform
from neuronjax.timing.roofline import roofline
from neuronjax.timing.schedule import schedule
from tests.lower.differential import sent
from tests.program.counts import count_instructions


def kernel(name: str, trips: int) -> str:
    return (
        f'kernel "{name}" {{ sbuf %{name} : float32[128, 512] @0\n'
        f"memset dst=%{name}<0, 128>[0; 1:512] value=#0\n"
        f"loop i in {trips} {{ tensor_scalar dst=%{name}<0, 128>[0; 1:512]"
        f" data=%{name}<0, 128>[0; 1:512] op0=add operand0=#1 }} }}"
    )


def program(*kernels: str) -> Program:
    return parse(f'program "p" target trainium2 lnc 2 {{ {" ".join(kernels)} }}')


def split(*kernels: str) -> str:
    return f'split "k" {{ {" ".join(kernels)} }}'


def test_the_longer_half_decides() -> None:
    timed = schedule(program(split(kernel("a", 30), kernel("b", 20))))
    alone = (schedule(program(half)) for half in (kernel("a", 30), kernel("b", 20)))
    longer, shorter = (half.kernels[0].added_ns for half in alone)
    assert longer > shorter
    (found,) = timed.kernels
    assert (found.path, found.runs, found.added_ns) == ("p/k", 1, longer)
    assert timed.total_ns == timed.launch_ns + longer


def test_a_kernel_takes_as_long_alone_as_beside_others() -> None:
    alone = program(kernel("c", 64))
    beside = program(split(kernel("a", 1), kernel("b", 1)), kernel("c", 64))
    assert schedule(alone).kernels[0].added_ns == schedule(beside).kernels[1].added_ns
    assert dict(schedule(beside).instructions) == count_instructions(beside)


@functools.cache
def layer(lnc: int) -> Program:
    def function(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        return jax.nn.gelu(x @ w) @ v

    shapes = [
        jax.ShapeDtypeStruct(each, jnp.bfloat16)
        for each in ((512, 1024), (1024, 2048), (2048, 1024))
    ]
    code = sent(jax.jit(function).trace(*shapes))
    return lower_program(code, Target("trainium2", lnc), 1)


def test_compiled_programs_gain_by_two_cores() -> None:
    one, two = schedule(layer(1)), schedule(layer(2))
    assert any(isinstance(node, Split) for node in layer(2).body)
    assert 1 < (one.total_ns - one.launch_ns) / (two.total_ns - two.launch_ns) <= 2.05
    assert two.flops >= one.flops
    for resource, bound in roofline(layer(2)).bounds_ns.items():
        assert bound <= two.total_ns - two.launch_ns, resource


def test_one_after_the_other_they_take_longer() -> None:
    nodes = [
        each
        for node in layer(2).body
        for each in (node.kernels if isinstance(node, Split) else (node,))
    ]
    assert all(isinstance(each, Kernel) for each in nodes)
    serial = dataclasses.replace(layer(2), body=tuple(nodes))
    platform = Platform.of(layer(2))
    together, apart = (schedule(each, platform=platform) for each in (layer(2), serial))
    assert apart.total_ns > 1.4 * together.total_ns
    assert apart.flops == together.flops
    assert apart.hbm_bytes == together.hbm_bytes


def test_two_cores_halve_the_bound_of_the_tensor_engine() -> None:
    """Work that both cores do, such as transposes of what they share, makes it more than half."""
    one, two = (roofline(layer(lnc)).bounds_ns["tensor"] for lnc in (1, 2))
    assert 0.5 * one <= two < 0.8 * one
