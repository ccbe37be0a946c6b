"""Losses of routers, and their gradients, against transformers and PyTorch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.layers.moe import Experts, MoE
from models.layers.router_losses import RouterCharge, charge_routers
from models.parameters import Parameters, merge, split

pytest.importorskip("torch", reason="the reference needs the extra `parity`")
pytest.importorskip("transformers", reason="the reference needs the extra `parity`")
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

ROWS, LENGTH, DIM, COUNT, PER_TOKEN = 3, 7, 5, 6, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, LENGTH, DIM)).astype("f4")
ROUTER = RNG.normal(size=(DIM, COUNT)).astype("f4")
REAL = np.array([[1] * LENGTH, [1] * 4 + [0] * 3, [0] * LENGTH], np.float32)


def balance(logits: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Of one row [T, E], of which some tokens are padding."""
    value = load_balancing_loss_func((logits,), COUNT, PER_TOKEN, real[None])
    assert isinstance(value, torch.Tensor)
    return value


def normalizer(logits: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Zoph et al., 2022, equation 5."""
    return torch.sum(real * torch.logsumexp(logits, -1) ** 2) / torch.sum(real)


@pytest.mark.parametrize(("number", "reference"), [(0, balance), (1, normalizer)])
def test_a_charged_layer_has_the_references_loss_and_gradients(
    number: int, reference: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    """Rows count by their tokens, and one of padding alone does not."""
    layer = MoE(
        DIM, Experts(COUNT, PER_TOKEN, 4), act="silu", stddev=0.5, out_stddev=0.5,
        param_dtype="float32", rngs=nnx.Rngs(0),
    )  # fmt: skip
    graph, weights = split(layer)
    weights |= {"router": jnp.asarray(ROUTER)}
    factors = jnp.zeros(2).at[number].set(0.3)

    def nothing(weights: Parameters, x: jax.Array, factors: jax.Array) -> jax.Array:
        """What a layer puts out, times 0: all gradients are those of the charge."""
        layer = merge(graph, weights)
        charge_routers(layer, RouterCharge(factors, jnp.asarray(REAL)))
        return 0 * jnp.sum(layer(x))

    of_weights, of_x, sums = jax.jit(jax.grad(nothing, argnums=(0, 1, 2)))(weights, X, factors)

    x, router = (torch.tensor(value, requires_grad=True) for value in (X, ROUTER))
    logits, real = x @ router, torch.tensor(REAL)
    total = torch.stack([real[b].sum() * reference(logits[b], real[b]) for b in (0, 1)]).sum()
    (0.3 * total).backward()
    assert x.grad is not None
    assert router.grad is not None
    np.testing.assert_allclose(sums[number], total.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(of_weights["router"], router.grad.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(of_x, x.grad.numpy(), rtol=1e-4, atol=1e-6)
