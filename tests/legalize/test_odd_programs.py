"""No rule fails, whatever program it looks at.

Rules are written with ordinary programs in mind, but a custom call or a composite may have any
number of operands and results of any type, and any configuration.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from neuronjax.hlo import module as hlo
from neuronjax.hlo.custom_calls import CALLBACK_TARGETS
from neuronjax.legalize.policy import DOWNCASTS, Policy
from neuronjax.legalize.report import findings
from neuronjax.legalize.rules import RULES
from neuronjax.legalize.rules.custom_calls import KNOWN_TARGETS, TOPK_TARGETS
from neuronjax.legalize.rules.rule import Program, Site
from tests.legalize.finding import bytecode
from tests.legalize.programs import Case

TYPES = (
    "tensor<f32>", "tensor<0xf32>", "tensor<4x0xi32>", "tensor<3x5xi8>", "tensor<2x2xcomplex<f32>>",
    "tensor<i1>", "tensor<8xui64>", "tensor<2x3x4xbf16>", "tensor<?xf32>", "tensor<4xf8E4M3FN>",
    "tensor<4x32xf8E5M2>", "tensor<4x1xf8E8M0FNU>", "tensor<7xui4>", "!stablehlo.token",
    "tuple<tensor<f32>, tensor<2xi32>>", "tuple<>",
)  # fmt: skip
CONFIGS = (
    "", 'backend_config = "", ', 'backend_config = "{", ', 'backend_config = "[1]", ',
    'backend_config = "{}", ', 'backend_config = {}, api_version = 4 : i32, ',
    'backend_config = {k = 3 : i64, dims = dense<1> : tensor<2xi64>}, api_version = 4 : i32, ',
)  # fmt: skip
TARGETS = sorted(KNOWN_TARGETS | TOPK_TARGETS | CALLBACK_TARGETS | {"", "lapack_spotrf_ffi", "é"})
SEEDS = 10


def custom_calls(seed: int) -> str:
    """One call of every target, with operands, results and configurations drawn at random."""
    draw = random.Random(seed)
    ops = []
    for number, target in enumerate(TARGETS):
        operands = draw.choices(range(len(TYPES)), k=draw.randrange(6))
        results = draw.choices(TYPES, k=draw.randrange(4))
        left = f"%r{number}:{len(results)} = " if results else ""
        ops.append(
            f'{left}"stablehlo.custom_call"({", ".join(f"%a{i}" for i in operands)}) '
            f'{{{draw.choice(CONFIGS)}call_target_name = "{target}"}} '
            f": ({', '.join(TYPES[i] for i in operands)}) -> ({', '.join(results)})"
        )
    arguments = ", ".join(f"%a{i}: {type_}" for i, type_ in enumerate(TYPES))
    return f"func.func @main({arguments}) {{\n" + "\n".join(ops) + "\nreturn\n}"


def empty(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.zeros(shape, dtype)


def on_nothing(x: jax.Array) -> Any:
    """Operations of arrays without elements, and of scalars."""
    none, some = empty(0, 4), empty(3, 0)
    return (
        none @ empty(4, 0),
        some @ empty(0, 2),
        none.sum(0),
        jnp.sort(some),
        lax.top_k(some, 0),
        none.at[empty(0, dtype=jnp.int32)].add(1.0),
        none[empty(0, dtype=jnp.int32)],
        lax.reduce_window(none, 0.0, lax.add, (1, 2), (1, 1), "SAME"),
        lax.conv(empty(0, 1, 4, 4), empty(2, 1, 3, 3), (1, 1), "SAME"),
        jnp.cumsum(none, 1),
        jax.random.normal(jax.random.key(0), (0,)),
        jnp.argmax(x[None]),
        jnp.concatenate([none, none]),
        x % 3,
        x.astype(jnp.int4),
        lax.clz(x.astype(jnp.int32)),
    )


def with_regions(x: jax.Array) -> Any:
    """Regions whose results are captured, constant, arguments, or nothing at all."""
    return (
        lax.while_loop(lambda c: x > 0, lambda c: c, ()),
        lax.cond(x > 0, lambda: (), lambda: ()),
        lax.switch(x.astype(jnp.int32), [lambda: 1, lambda: 2, lambda: 3]),
        lax.fori_loop(0, 0, lambda i, c: c, x),
        lax.scan(lambda c, _: (c, None), x, None, length=0),
        lax.reduce(jnp.ones(3), 0.0, lambda a, b: a, (0,)),
        lax.reduce(jnp.ones(3), 0.0, lambda a, b: jnp.float32(1), (0,)),
        lax.reduce((jnp.ones(3), jnp.ones(3)), (0.0, 0.0), lambda a, b: (b[0], a[0]), (0,)),
        jnp.zeros(3).at[0].apply(jnp.sin),
        jax.checkpoint(jnp.sin)(x),
    )


def with_effects(x: jax.Array) -> Any:
    jax.debug.print("hello")
    jax.debug.callback(lambda: None)
    jax.debug.print("{}", x, ordered=True)
    jax.pure_callback(lambda: None, None)
    jax.experimental.io_callback(lambda: None, None, ordered=True)
    return jax.pure_callback(lambda: x.dtype.type(0), x)


without_arguments = lax.composite(lambda: jnp.zeros(3), name="test.none")
of_nothing = lax.composite(lambda x: (), name="test.nothing")

COMPOSITES = """
func.func private @none() -> () { return }
func.func private @topk(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }
func.func @main(%a: tensor<f32>) -> tensor<f32> {
  "stablehlo.composite"() {name = "chlo.top_k", decomposition = @none} : () -> ()
  %b = "stablehlo.composite"(%a) {name = "chlo.top_k", decomposition = @topk}
    : (tensor<f32>) -> tensor<f32>
  %t = "stablehlo.create_token"() : () -> !stablehlo.token
  %u = "stablehlo.after_all"() : () -> !stablehlo.token
  %o = "stablehlo.outfeed"(%t) {outfeed_config = ""} : (!stablehlo.token) -> !stablehlo.token
  %i = "stablehlo.infeed"(%o) {infeed_config = ""} : (!stablehlo.token) -> !stablehlo.token
  %e = stablehlo.optimization_barrier %i : !stablehlo.token
  return %b : tensor<f32>
}"""

PROGRAMS: dict[str, Callable[..., Any] | str] = {
    "arrays of nothing": on_nothing,
    "regions": with_regions,
    "effects": with_effects,
    "composites": lambda x: (without_arguments(), of_nothing(x)),
    "composites and tokens": COMPOSITES,
    **{f"custom calls {seed}": custom_calls(seed) for seed in range(SEEDS)},
}
POLICIES = [
    Policy(core_version=core, sdk=sdk, integer_downcasts=allowed)
    for core, (sdk, allowed) in itertools.product(
        (1, 3, 4), (((2, 20), frozenset()), ((2, 32), frozenset(DOWNCASTS)))
    )
]


def failures(code: bytes, policy: Policy) -> Iterator[str]:
    """What the rules raise, asked one by one."""
    with hlo.context():
        program = Program(hlo.load(code), policy)
        for op, function in program.graph.operations:
            for path in program.graph.paths(function):
                site = Site(program, op, path)
                for rule in RULES:
                    matches = op.name in rule.ops or not rule.ops
                    if matches and (not rule.elements or rule.elements & site.elements):
                        try:
                            rule.check(site)
                        except Exception as error:
                            yield f"{rule.label} ({rule.what}) at {op}: {error!r}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_rule_fails(name: str) -> None:
    code = bytecode(Case(name, "", PROGRAMS[name], (jnp.float32(1),)))
    for policy in POLICIES:
        assert list(failures(code, policy)) == []
        with hlo.context():
            findings(hlo.load(code), replace(policy, legality="warn"))
