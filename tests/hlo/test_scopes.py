"""The user's name scopes of an op, as JAX writes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from neuronjax.hlo import graph, location, module


@dataclasses.dataclass
class Named:
    """An op with a location."""

    location: str


@pytest.mark.parametrize(
    ("name", "scopes"),
    [
        ("jit(step)/decoder/block_3/attention/dot_general", "decoder/block_3/attention"),
        ("jit(step)/jvp(block_0)/mlp/jit(relu)/max", "block_0/mlp"),
        ("jit(f)/transpose(jvp(block_1))/attention/mul", "block_1/attention"),
        ("jit(f)/vmap(transpose(jvp(outer)))/inner/add", "outer/inner"),
        ("jit(f)/jvp()/while/body/closed_call/layer/tanh", "layer"),
        ("jit(f)/cond/branch_1_fun/layer/tanh", "layer"),
        ("jit(f)/checkpoint/rematted_computation/layer/tanh", "layer"),
        ("jit(f)/shard_map/layer/psum", "layer"),
        ("jit(f)/a \\22b\\22/add", 'a "b"'),
        ("jit(f)/layer/btd,vd->btv/dot_general", "layer"),
        ("jit(f)/add", ""),
        ("max", ""),
    ],
)
def test_scopes(name: str, scopes: str) -> None:
    assert location.scope(Named(f'loc("{name}"("f"("train.py":3:1 to :9)))')) == scopes


def test_scopes_of_modules_leave_out_what_libraries_name() -> None:
    name = "jit(f)/transpose(jvp(module(Net)))/module(layers.3)/linear/...a,ba->...b/dot_general"
    assert location.module_scope("Net") in name
    assert location.scope(Named(f'loc("{name}"("f"("train.py":3:1 to :9)))')) == "Net/layers.3"


def test_scopes_of_calls_and_of_nothing() -> None:
    assert location.scope(Named('loc("jit:"("loop/mlp/jit"("train.py":3:1)))')) == "loop/mlp"
    assert location.scope(Named("loc(unknown)")) == ""
    assert location.scope(Named('loc("train.py":3:1)')) == ""


def called(name: str, *functions: str) -> Named:
    """An op of a stack of functions, innermost first; those with a slash belong to a package."""
    stack = ""
    for function in reversed(functions):
        package, _, own = function.rpartition("/")
        file = f"lib/site-packages/{package}/a.py" if package else "train.py"
        frame = f'"{own}"("{file}":3:1 to :9)'
        stack = f"callsite({frame} at {stack})" if stack else frame
    return Named(f'loc("{name}"({stack}))')


@pytest.mark.parametrize(
    ("name", "functions", "layer"),
    [
        ("jit(step)/jvp()/dot_general",
         ["flax/Linear.__call__", "Block.__call__", "Model.__call__", "loss", "step", "main"],
         "Model/Block/Linear"),
        ("jit(step)/add", ["Model.__call__.<locals>.body", "Model.__call__", "step"], "Model"),
        ("jit(step)/mul", ["flax/_stats", "flax/Norm.__call__", "step", "Job.__call__"], "Norm"),
        ("jit(step)/mul", ["jax/square", "mlp", "step.<locals>.loss", "step", "main"], "loss/mlp"),
        ("jit(step)/mul", ["optax/update_fn", "optax/chain", "update", "step", "main"],
         "update/optax"),
        ("jit(step)/mul", ["jnp/einsum", "Block.__call__", "Model.__call__", "loss",
                           "Block.__call__", "Model.__call__", "loss", "step"], "Model/Block"),
        ("jit(step)/add", ["summed", "Embedding.__call__", "Model.__call__", "loss",
                           "summed", "MLP.__call__", "Model.__call__", "loss", "step"],
         "Model/MLP"),
        ("jit(step)/mul", ["Linear.__call__", "Stack.__call__", "Block.__call__",
                           "Stack.__call__", "step"], "Stack/Block/Stack/Linear"),
        ("jit(step)/mul", ["step", "main"], ""),
        ("jit(<lambda>)/mul", ["loss", "<lambda>", "main"], "loss"),
        ("jit(clip)/min", ["jax/clip_", "train", "main"], ""),
        ("slice", ["loss"], "loss"),
        ("slice", ["loss", "step"], "loss"),
    ],
)  # fmt: skip
def test_layers_without_scopes(name: str, functions: list[str], layer: str) -> None:
    assert location.layer(called(name, *functions), "step") == layer


@pytest.mark.parametrize(
    ("scopes", "common"),
    [
        (["a/b", "a/c"], "a"), (["a/b", "", "a/b"], "a/b"), (["a", "b"], ""), (["", ""], ""),
        (["a/b", "a/bc"], "a"), ([], ""),
    ],
)  # fmt: skip
def test_common_scope(scopes: list[str], common: str) -> None:
    assert location.common_scope(scopes) == common


def test_scopes_go_through_calls_and_loops() -> None:
    def layer(x: jax.Array) -> jax.Array:
        with jax.named_scope("layer"):
            return jax.nn.relu(x)

    def function(x: jax.Array) -> jax.Array:
        with jax.named_scope("outer"):
            x = jax.jit(layer)(x)
            return jax.lax.scan(lambda c, _: (layer(c), None), x, None, length=2)[0]

    text = jax.jit(function).lower(np.ones(3, np.float32)).as_text(debug_info=True)
    with module.context():
        read = graph.read(module.load(text.encode()))

    def found(of: graph.Graph) -> set[tuple[str, str]]:
        own = {(op.name, op.scope) for op in of.operations}
        return own.union(*(found(region) for op in of.operations for region in op.regions))

    scopes = {scope for name, scope in found(read) if name == "maximum"}
    assert scopes == {"outer/layer"}


def test_functions_of_jax_have_the_line_that_calls_them() -> None:
    def noisy(x: jax.Array, key: jax.Array) -> jax.Array:
        return x + jax.random.normal(key, x.shape)  # LINE

    lowered = jax.jit(noisy).lower(np.ones(3, np.float32), jax.random.key(0, impl="threefry2x32"))
    with module.context():
        read = graph.read(module.load(lowered.as_text(debug_info=True).encode()))

    def sources(of: graph.Graph) -> set[str]:
        own = {op.source for op in of.operations if op.name != "constant"}
        return own.union(*(sources(region) for op in of.operations for region in op.regions))

    lines = Path(__file__).read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.endswith("# LINE"))
    assert sources(read) == {f"{__file__}:{line}"}
