"""The user's line of an op, wherever JAX has put the op.

The line that makes the op looked for ends in ``# here``; where it is made inside JAX, that is the
line that calls JAX.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax._src.interpreters import mlir

from neuronjax.hlo import module as hlo
from neuronjax.hlo.calls import CallGraph
from neuronjax.hlo.location import Frame, user_frame

X = np.ones((4, 4), np.float32)


def narrowed(x):
    return lax.reduce_precision(x, 5, 2)


def in_scan(x):
    def body(carry, row):
        return lax.reduce_precision(carry, 5, 2) + row, row  # here

    return lax.scan(body, x[0], x)


def in_nested_loops(x):
    def outer(i, c):
        def inner(j, d):
            return lax.reduce_precision(d, 5, 2)  # here

        return lax.fori_loop(0, 3, inner, c)

    return lax.fori_loop(0, 3, outer, x)


def in_checkpoint(x):
    @jax.checkpoint
    def block(y):
        y = jnp.sin(y)
        return lax.reduce_precision(y, 5, 2)  # here

    return jax.grad(lambda y: block(y).sum())(x)


def in_branch(x):
    def left(y):
        return lax.reduce_precision(y, 5, 2)  # here

    return lax.cond(x[0, 0] > 0, left, jnp.cos, x)


def in_vmap(x):
    return jax.vmap(lambda row: lax.reduce_precision(row, 5, 2))(x)  # here


@jax.jit
def inner_jit(x):
    return lax.reduce_precision(x, 5, 2)  # here


def in_jit_called_twice(x):
    y = inner_jit(x)
    return inner_jit(y) + inner_jit(y + 1)


def in_custom_vjp(x):
    @jax.custom_vjp
    def f(y):
        return y

    def forward(y):
        return y, y

    def backward(kept, cotangent):
        return (lax.reduce_precision(cotangent * kept, 5, 2),)

    f.defvjp(forward, backward)
    return jax.grad(lambda y: f(y).sum())(x)  # here


class Block(nnx.Module):
    """A module of flax around the op."""

    def __init__(self) -> None:
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        return lax.reduce_precision(x * self.scale[...], 5, 2)  # here


def in_flax(x):
    return nnx.jit(lambda block, y: block(y))(Block(), x)


def in_argument_of_helper(x):
    return narrowed(x)


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "scan": (in_scan, in_scan),
    "nested loops": (in_nested_loops, in_nested_loops),
    "checkpoint and its gradient": (in_checkpoint, in_checkpoint),
    "branch": (in_branch, in_branch),
    "vmap": (in_vmap, in_vmap),
    "jit called on several lines": (in_jit_called_twice, inner_jit),
    "custom_vjp, whose gradient JAX puts where the function is called": (
        in_custom_vjp,
        in_custom_vjp,
    ),
    "flax module": (in_flax, Block.__call__),
}
"""Program -> the function with the marked line."""


def marked_line(function: Any) -> int:
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    (number,) = (n for n, line in enumerate(lines) if line.rstrip().endswith("# here"))
    return first + number


def sources(function: Callable[..., Any], op_name: str) -> list[Frame | None]:
    """The lines of all ops of this name, along every call path."""
    lowered = jax.jit(function).trace(X).lower(lowering_platforms=("neuron",))
    with hlo.context():
        module = hlo.load(mlir.module_to_bytecode(lowered.compiler_ir()))
        graph = CallGraph(module)
        return [
            graph.source(op, path)
            for op, owner in graph.operations
            if op.name == op_name
            for path in graph.paths(owner)
        ]


@pytest.mark.parametrize("name", CASES)
def test_line_in_users_function(name: str) -> None:
    program, marked = CASES[name]
    found = sources(program, "stablehlo.reduce_precision")
    assert found
    assert {(frame.file, frame.line) for frame in found} == {(__file__, marked_line(marked))}


def once(x):
    return jnp.linalg.cholesky(x)  # here


def twice(x):
    y = jnp.linalg.cholesky(x)
    return jnp.linalg.cholesky(y + 1)


def test_library_functions_are_reported_where_they_are_called() -> None:
    """They are traced once: what is inside knows the first caller alone, which is ``once``."""
    assert [frame.line for frame in sources(once, "stablehlo.custom_call")] == [marked_line(once)]
    first = inspect.getsourcelines(twice)[1]
    assert {frame.line for frame in sources(twice, "stablehlo.custom_call")} == {
        first + 1,
        first + 2,
    }


def random_once(x):
    return jax.random.normal(jax.random.wrap_key_data(x[0, :2].astype(jnp.uint32)), (2,))


def random_again(x):
    return jax.random.normal(jax.random.wrap_key_data(x[0, :2].astype(jnp.uint32)), (2,))  # here


def test_loops_inside_library_functions_are_reported_where_they_are_called() -> None:
    sources(random_once, "stablehlo.xor")
    found = {frame.line for frame in sources(random_again, "stablehlo.xor")}
    assert found == {marked_line(random_again)}


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["/a/train.py"], "/a/train.py"),
        (["/v/lib/python3.11/site-packages/flax/nnx/module.py", "/a/train.py"], "/a/train.py"),
        (["/v/site-packages/jax/_src/core.py"], "/v/site-packages/jax/_src/core.py"),
        (["/v/site-packages/mymodel/net.py", "/a/train.py"], "/v/site-packages/mymodel/net.py"),
        (["/v/site-packages/torch/nn/modules/module.py", "/a/train.py"], "/a/train.py"),
        (["/v/site-packages/transformers/integrations/sdpa_attention.py",
          "/v/site-packages/transformers/models/llama/modeling_llama.py", "/a/train.py"],
         "/v/site-packages/transformers/models/llama/modeling_llama.py"),
        (["/v/site-packages/keras/src/layers/layer.py", "/a/models/net.py"], "/a/models/net.py"),
        ([inspect.getsourcefile(inspect), "/a/train.py"], "/a/train.py"),
        ([inspect.getsourcefile(hlo), "/a/train.py"], "/a/train.py"),
        ([], None),
    ],
)  # fmt: skip
def test_user_frame_is_the_innermost_outside_libraries(files: list[str], chosen: str) -> None:
    frame = user_frame([Frame("f", file, 1) for file in files])
    assert (frame and frame.file) == chosen


def test_names_of_files_may_need_quoting() -> None:
    text = 'module { func.func @main() { return loc("é \\"b\\" \\\\41.py":7:1) } }'
    with hlo.context():
        (op,) = CallGraph(hlo.load(text.encode())).operations
        frame = CallGraph(hlo.load(text.encode())).source(op[0], ())
    assert (frame.file, frame.line) == ('é "b" \\41.py', 7)
