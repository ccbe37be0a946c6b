"""Memory by kind against counts by hand, to the byte: kinds follow from structure, not names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.training import train_state

import neuronjax
from neuronjax import workloads
from neuronjax.errors import ConfigurationError
from neuronjax.planning.argument_kinds import ARGUMENT_KINDS
from neuronjax.planning.memory import advice
from neuronjax.planning.tracing import abstract_mesh, trace
from neuronjax.planning.workload import Workload

D, H, ROWS, SLOTS = 64, 128, 16, 32
F32, BF16 = jnp.float32, jnp.bfloat16


def array(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


class Program(NamedTuple):
    """A function and its arguments; `counted` are bytes by kind, counted by hand."""

    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    counted: Mapping[str, int]
    kinds: Mapping[str, str] | None = None


def mlp(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["up"]) @ params["down"]


PARAMS = {"up": array(D, H), "down": array(H, D)}
PARAMS_BYTES = 4 * 2 * D * H
X_BYTES = 4 * ROWS * D


def plain() -> Program:
    """Nothing says what the arguments are."""
    counted = {"arguments": PARAMS_BYTES + X_BYTES, "results": X_BYTES}
    return Program(mlp, (PARAMS, array(ROWS, D)), counted)


def told() -> Program:
    """The user says it, of a whole argument and of a part of it."""
    counted = {"weights": 4 * D * H, "state": 4 * D * H, "inputs": X_BYTES, "results": X_BYTES}
    kinds = {"params": "weights", "params['down']": "state", "x": "inputs"}
    return Program(mlp, (PARAMS, array(ROWS, D)), counted, kinds)


def misnamed() -> Program:
    """Names of other kinds: projections of keys, statistics, something that ends in `_in`."""

    def apply(cache: Any, opt_state: jax.Array, mlp_in: jax.Array, batch_stats: jax.Array) -> Any:
        return (mlp_in @ cache["keys"] + mlp_in @ cache["values"]) * opt_state + batch_stats

    arguments = {"keys": array(D, D), "values": array(D, D)}, array(D), array(ROWS, D), array(D)
    counted = {"arguments": 4 * (2 * D * D + D + ROWS * D + D), "results": X_BYTES}
    return Program(apply, arguments, counted)


def plain_training() -> Program:
    """Donated, returned, and all new: a state, whose batch is no part of it."""

    def step(params: Any, x: jax.Array) -> Any:
        gradients = jax.grad(lambda params: mlp(params, x).sum())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    counted = {"state": PARAMS_BYTES, "arguments": X_BYTES}
    return Program(jax.jit(step, donate_argnums=0), (PARAMS, array(ROWS, D)), counted)


def optax_training() -> Program:
    """Moments are known by their type, the parameters by having their form."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def step(p: Any, s: Any, x: jax.Array) -> Any:
        gradients = jax.grad(lambda p: mlp(p, x).sum())(p)
        updates, s = optimizer.update(gradients, s, p)
        return optax.apply_updates(p, updates), s

    state = jax.eval_shape(optimizer.init, PARAMS)
    counted = {"weights": PARAMS_BYTES, "optimizer": 2 * PARAMS_BYTES + 4, "arguments": X_BYTES}
    return Program(jax.jit(step, donate_argnums=(0, 1)), (PARAMS, state, array(ROWS, D)), counted)


def linen_training() -> Program:
    """Flax's TrainState: its counter of steps is a state."""
    make = lambda: train_state.TrainState.create(  # noqa: E731
        apply_fn=mlp, params=jax.tree.map(jnp.zeros_like, PARAMS), tx=optax.sgd(0.1, momentum=0.9)
    )

    def step(state: Any, x: jax.Array) -> Any:
        gradients = jax.grad(lambda params: state.apply_fn(params, x).sum())(state.params)
        return state.apply_gradients(grads=gradients)

    state = jax.eval_shape(make)
    counted = {
        "weights": PARAMS_BYTES, "optimizer": PARAMS_BYTES, "state": 4, "arguments": X_BYTES,
    }  # fmt: skip
    return Program(jax.jit(step, donate_argnums=0), (state, array(ROWS, D)), counted)


class Net(nnx.Module):
    """A layer with a batch norm and LoRA."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(D, D, rngs=rngs)
        self.norm = nnx.BatchNorm(D, rngs=rngs)
        self.lora = nnx.LoRA(D, 4, D, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.linear(x)) + self.lora(x)


NET_BYTES = 4 * (D * D + D + 2 * D + 2 * 4 * D)


def nnx_forward() -> Program:
    """Variables of a module that `nnx.jit` takes; batch norm reads its statistics."""
    net = Net(nnx.Rngs(0))
    net.eval()
    counted = {
        "weights": NET_BYTES, "statistics": 4 * 2 * D, "arguments": X_BYTES,
        "results": X_BYTES,
    }  # fmt: skip
    function = nnx.jit(lambda net, x: net(x), graph_updates=False)
    return Program(function, (net, array(ROWS, D)), counted)


def nnx_training() -> Program:
    """A module and its optimizer."""
    net = nnx.Linear(D, D, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)

    def step(net: nnx.Module, optimizer: nnx.Optimizer[Any], x: jax.Array) -> None:
        gradients = nnx.grad(lambda net: net(x).sum())(net)
        optimizer.update(net, gradients)

    size = 4 * (D * D + D)
    counted = {"weights": size, "optimizer": 2 * size + 4 + 4, "arguments": X_BYTES}
    jitted = nnx.jit(step, donate_argnums=(0, 1))
    return Program(jitted, (net, optimizer, array(ROWS, D)), counted)


def nnx_cache() -> Program:
    """The cache of attention, in a state that `jax.jit` takes."""
    attention = nnx.MultiHeadAttention(
        num_heads=4, in_features=D, decode=True, use_bias=False, rngs=nnx.Rngs(0)
    )
    attention.init_cache((ROWS, SLOTS, D))
    graph, rest = nnx.split(attention)

    def step(variables: Any, x: jax.Array) -> Any:
        module = nnx.merge(graph, variables)
        result = module(x, decode=True)
        return result, nnx.state(module, nnx.Cache)

    counted = {
        "weights": 4 * 4 * D * D, "cache": 4 * 2 * ROWS * SLOTS * D + 4,
        "arguments": 4 * ROWS * D, "results": 4 * ROWS * D,
    }  # fmt: skip
    return Program(jax.jit(step, donate_argnums=0), (rest, array(ROWS, 1, D)), counted)


def batch_norm() -> Program:
    """Statistics in a plain tree: all new at every step, so a state."""

    def step(batch_stats: Any, x: jax.Array) -> Any:
        mean, variance = x.mean(0), x.var(0)
        old = jax.tree.map(lambda value: 0.9 * value, batch_stats)
        new = {"mean": old["mean"] + 0.1 * mean, "var": old["var"] + 0.1 * variance}
        return new, (x - mean) * jax.lax.rsqrt(variance + 1e-5)

    counted = {"state": 4 * 2 * D, "arguments": X_BYTES, "results": X_BYTES}
    arguments = {"mean": array(D), "var": array(D)}, array(ROWS, D)
    return Program(jax.jit(step, donate_argnums=0), arguments, counted)


def scanned_decoding() -> Program:
    """Caches of all layers in one array that a scan goes through, under jit and remat."""

    def step(weights: jax.Array, kept: jax.Array, x: jax.Array, at: jax.Array) -> Any:
        @jax.checkpoint
        def layer(x: jax.Array, given: Any) -> Any:
            weight, kept = given
            kept = jax.lax.dynamic_update_slice_in_dim(kept, (x @ weight)[:, None], at, 1)
            return kept.sum(1), kept

        return jax.lax.scan(layer, x, (weights, kept))

    arguments = array(3, D, D), array(3, ROWS, SLOTS, D), array(ROWS, D), array(dtype=jnp.int32)
    counted = {
        "arguments": 4 * 3 * D * D + X_BYTES + 4, "cache": 4 * 3 * ROWS * SLOTS * D,
        "results": X_BYTES,
    }  # fmt: skip
    return Program(jax.jit(step, donate_argnums=1), arguments, counted)


def paged_decoding() -> Program:
    """Pages that are written at places, next to weights that are called `keys`."""

    def step(keys: jax.Array, pages: Any, x: jax.Array, places: jax.Array) -> Any:
        pages = jax.lax.cond(
            places[0] > 0, lambda pages: pages.at[places].set(x @ keys), lambda pages: pages, pages
        )
        return pages.sum(0), pages

    arguments = array(D, D), array(SLOTS, D), array(ROWS, D), array(ROWS, dtype=jnp.int32)
    counted = {
        "arguments": 4 * D * D + X_BYTES + 4 * ROWS, "cache": 4 * SLOTS * D, "results": 4 * D,
    }  # fmt: skip
    return Program(jax.jit(step, donate_argnums=1), arguments, counted)


def consumed() -> Program:
    """Donated, but nothing of its form is returned; and an argument that nothing uses."""

    def step(x: jax.Array, unused: jax.Array, w: jax.Array) -> jax.Array:
        return (x @ w).sum(0)

    jitted = jax.jit(step, donate_argnums=(0, 1))
    counted = {"arguments": X_BYTES + 4 * D * D, "results": 4 * D}
    return Program(jitted, (array(ROWS, D), array(ROWS, D), array(D, D)), counted)


PROGRAMS = (
    plain, told, misnamed, plain_training, optax_training, linen_training, nnx_forward,
    nnx_training, nnx_cache, batch_norm, scanned_decoding, paged_decoding, consumed,
)  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_kinds_are_those_counted_by_hand(make: Callable[[], Program]) -> None:
    fn, arguments, counted, kinds = make()
    found = neuronjax.estimate(fn, *arguments, target="trn2.3xlarge", lnc=1, kinds=kinds)
    own = ("constants", "scratch", "reserved", *found.memory_ranges)
    assert {kind: size for kind, size in found.memory.items() if kind not in own} == counted


def test_a_decoder_has_the_cache_that_it_has() -> None:
    """Projections of keys and values are weights."""
    sizes = {"dim": 1024, "hidden": 1024, "heads": 8, "kv_heads": 8, "context": 16, "vocab": 1024}
    made = workloads.decode(abstract_mesh("core=1"), depth=1, batch=1, **sizes)
    made.pop("layers")
    traced = trace(Workload(**made))
    paths = {kind: [a.path for a in traced.arguments if a.kind == kind] for kind in ARGUMENT_KINDS}
    assert paths["cache"] == ["caches[0][0]", "caches[0][1]"]
    assert all(path.startswith("weights") for path in paths["weights"])
    assert sorted(paths["inputs"]) == ["position", "tokens"]
    assert sum(map(len, paths.values())) == len(traced.arguments)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (
            {"parms": "weights"},
            "no argument is called 'parms' or begins with it; the arguments are",
        ),
        (
            {"params": "weight"},
            "'weight' of params is not one of weights, .* Did you mean weights?",
        ),
        ({"params": 3}, "3 of params is not one of"),
        ({"params['u']": "weights"}, "no argument is called"),
    ],
)
def test_wrong_kinds_are_named(kinds: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        neuronjax.estimate(mlp, PARAMS, array(ROWS, D), target="trn2.3xlarge", kinds=kinds)


def test_advice_follows_kinds() -> None:
    (line,) = advice({"arguments": 20 << 30}, 16 << 30)
    assert "kinds=" in line
    (line,) = advice({"cache": 20 << 30}, 16 << 30)
    assert "shorten the context" in line
