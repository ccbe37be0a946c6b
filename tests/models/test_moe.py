"""The mixture of experts against a loop over tokens in FP64."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import expit, softmax

from models.errors import ConfigError
from models.layers.moe import FEW_TOKENS, Experts, MoE, assign
from models.parameters import Parameters, merge, split

DIM, HIDDEN = 6, 5
KERNELS = ("gate", "up", "down")


def build(experts: Experts, router_scale: float = 1.0) -> tuple[Any, Parameters]:
    """The structure, and random weights; a large router scale makes the loads unequal."""
    layer = nnx.eval_shape(
        lambda: MoE(
            DIM,
            experts,
            act="silu",
            stddev=0.5,
            out_stddev=0.5,
            param_dtype="float32",
            rngs=nnx.Rngs(0),
        )
    )
    graph, shapes = split(layer)
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(size=leaf.shape).astype("f4") for name, leaf in shapes.items()}
    weights["router"] *= router_scale
    return graph, weights


def gated(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """One expert."""
    before = x @ gate
    return (before * expit(before) * (x @ up)) @ down


def reference(tokens: np.ndarray, weights: Parameters, experts: Experts) -> np.ndarray:
    """Token by token of a row, expert by expert; beyond its capacity, an expert passes over."""
    capacity = np.inf
    if experts.capacity_factor is not None:
        visits = len(tokens) * experts.per_token
        capacity = max(1, round(experts.capacity_factor * visits / experts.count))
    load = np.zeros(experts.count)
    p = {name: value.astype(np.float64) for name, value in weights.items()}
    result = np.zeros_like(tokens, np.float64)
    for n, x in enumerate(tokens.astype(np.float64)):
        scores = x @ p["router"]
        chosen = np.argsort(-scores)[: experts.per_token]
        shares = expit(scores)[chosen] if experts.gated_inputs else softmax(scores)[chosen]
        if experts.normalize and not experts.gated_inputs:
            shares = shares / shares.sum()
        for share, e in zip(shares, chosen, strict=True):
            load[e] += 1
            if load[e] <= capacity:
                read, weight = (share * x, 1) if experts.gated_inputs else (x, share)
                result[n] += weight * gated(read, *(p[f"experts_{k}"][e] for k in KERNELS))
        if experts.shared_dim is not None:
            result[n] += gated(x, *(p[f"shared.{k}.kernel"] for k in KERNELS))
    return result


@pytest.mark.parametrize("router_scale", [1.0, 8.0])
@pytest.mark.parametrize(
    "experts",
    [
        Experts(4, 2, HIDDEN),
        Experts(8, 3, HIDDEN, normalize=False),
        Experts(3, 3, HIDDEN, gated_inputs=True, shared_dim=7),
        Experts(1, 1, HIDDEN),
        Experts(4, 2, HIDDEN, capacity_factor=1.0),
        Experts(4, 1, HIDDEN, capacity_factor=0.1),
    ],
    ids=str,
)
def test_a_mixture_is_the_loop_over_tokens(
    devices: list[jax.Device], experts: Experts, router_scale: float
) -> None:
    graph, weights = build(experts, router_scale)
    tokens = np.random.default_rng(2).normal(size=(2, 9, DIM)).astype(np.float32)
    arguments = jax.device_put((weights, tokens), devices[0])
    got = jax.jit(lambda weights, x: merge(graph, weights)(x))(*arguments)
    expected = np.stack([reference(row, weights, experts) for row in tokens])
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_gradients_are_those_of_the_dense_mixture() -> None:
    """Every expert computes every token, and the router's weights pick: the same function."""
    experts = Experts(4, 2, HIDDEN)
    graph, weights = build(experts)
    x = np.random.default_rng(3).normal(size=(1, 7, DIM)).astype(np.float32)

    def dense(weights: Parameters) -> jax.Array:
        probabilities = jax.nn.softmax(x[0] @ weights["router"])
        best, chosen = jax.lax.top_k(probabilities, 2)
        shares = best / best.sum(-1, keepdims=True)
        shares = jnp.zeros_like(probabilities).at[jnp.arange(7)[:, None], chosen].set(shares)
        gate = jnp.einsum("nd,edf->enf", x[0], weights["experts_gate"])
        hidden = jax.nn.silu(gate) * jnp.einsum("nd,edf->enf", x[0], weights["experts_up"])
        every = jnp.einsum("enf,efd->end", hidden, weights["experts_down"])
        return jnp.sum(jnp.einsum("ne,end->nd", shares, every) ** 2)

    got = jax.jit(jax.grad(lambda weights: jnp.sum(merge(graph, weights)(x) ** 2)))(weights)
    expected = jax.jit(jax.grad(dense))(weights)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


def routings(count: int, per_token: int, number: int) -> Iterator[np.ndarray]:
    """Choices [N, K]: everybody the same, everybody another, and random ones."""
    rng = np.random.default_rng(0)
    for first in range(count):
        yield np.tile((first + np.arange(per_token)) % count, (number, 1))
    yield (np.arange(number)[:, None] + np.arange(per_token)) % count
    for _ in range(50):
        skewed = rng.random((number, count)) ** rng.integers(1, 6, count)
        yield np.argsort(-skewed, axis=1)[:, :per_token]


@pytest.mark.parametrize(
    ("count", "per_token", "number"),
    [(1, 1, 5), (4, 1, 2), (4, 2, 9), (6, 6, 3), (16, 3, 3), (16, 3, 11), (4, 2, 150), (6, 6, 129)],
)
def test_every_visit_has_a_slot_of_its_own_in_a_block_of_its_expert(
    count: int, per_token: int, number: int
) -> None:
    experts = Experts(count, per_token, HIDDEN)
    sizes = assign(jnp.zeros((1, number, per_token), jnp.int32), experts)
    if number > FEW_TOKENS:
        assert sizes.number * sizes.size <= 2 * number * per_token + count
    else:
        assert sizes.number <= count

    @jax.jit
    def places(chosen: jax.Array) -> tuple[jax.Array | None, jax.Array]:
        blocks = assign(chosen[None], experts)
        return blocks.expert, blocks.slot

    for chosen in routings(count, per_token, number):
        given, slots = places(chosen.astype(np.int32))
        owners, slots = np.arange(count) if given is None else np.asarray(given), np.asarray(slots)
        assert len(set(slots)) == chosen.size
        assert slots.max() < sizes.number * sizes.size
        np.testing.assert_array_equal(owners[slots // sizes.size], chosen.ravel())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 4, "per_token": 5}, "per_token=5 is out of range: choose from 1 to 4"),
        ({"count": 4, "per_token": 0}, "per_token=0 is out of range: choose from 1 to 4"),
        ({"count": 4, "per_token": 1, "capacity_factor": 0.0}, "capacity_factor=0.0 must be posit"),
    ],
)
def test_mixtures_that_do_not_fit_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Experts(hidden_dim=HIDDEN, **fields)
