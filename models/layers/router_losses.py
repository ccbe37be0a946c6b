"""Losses of the routers of mixtures of experts, beside what a model is trained for.

The load balancing loss E · Σ_e f_e · P_e is least where the loads of E experts are equal: f_e is
the share of tokens that visit expert e, P_e the mean probability that the router gives it (Fedus et
al., "Switch Transformers", 2022, equations 4 to 6; where tokens visit K experts, f sums up to K, as
in Mixtral). It is taken of every row by itself, so that it depends on no mesh and no micro-batch:
that of the published runs, whose micro-batches are one row. The z-loss is the mean of
log²(Σ exp logits) (Zoph et al., "ST-MoE", 2022).

A layer's losses are charged where they arise: its output stays as it is, but the backward pass adds
the gradient of the losses (as Megatron's `MoEAuxLossAutoScaler` does). So they need no path through
loops, recomputation and pipelines, and their values are the gradients of their factors.

Axis names: B rows, T positions, E experts, K experts per token.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.varying import vary, varying_axes

LOSSES = ("router_aux_loss", "router_z_loss")
"""What the factors belong to, in their order."""


@partial(jax.tree_util.register_dataclass, data_fields=["factors", "weights"], meta_fields=["axes"])
@dataclass(frozen=True)
class RouterCharge:
    """What routers are charged with.

    Attributes:
      factors: FP32 [2], by `LOSSES`, of the sums over tokens of one layer's losses.
      weights: how much each token counts [B, T].
      axes: mesh axes whose cores have other positions of the same rows.
    """

    factors: jax.Array
    weights: jax.Array
    axes: tuple[str, ...] = ()

    def where(self, counts: jax.Array) -> "RouterCharge":
        """This charge, or none if `counts`, a truth value [], is false."""
        return RouterCharge(self.factors, jnp.where(counts, self.weights, 0), self.axes)

    def charge(
        self, y: jax.Array, logits: jax.Array, chosen: jax.Array, repeated: tuple[str, ...]
    ) -> jax.Array:
        """y, at whose gradient the losses of logits [B, T, E] and the experts chosen [B, T, K] are
        charged. Cores along the mesh axes `repeated` have the same logits."""
        losses = self.factors * self._sums(logits, chosen)
        repetitions = (*repeated, *self.axes)
        share = 1 / jax.lax.axis_size(repetitions) if repetitions else 1
        return _charge_loss(y, share * jnp.sum(losses))

    def _sums(self, logits: jax.Array, chosen: jax.Array) -> jax.Array:
        """The sums of the losses of all rows' tokens, FP32 [2]."""
        logits = logits.astype(jnp.float32)
        count = logits.shape[-1]
        visits = jnp.sum(jax.nn.one_hot(chosen, count), axis=2)
        loads, masses = (
            self._over_positions(jnp.einsum("bt,bte->be", self.weights, values))
            for values in (visits, jax.nn.softmax(logits, axis=-1))
        )
        tokens = self._over_positions(jnp.sum(self.weights, axis=1))
        balance = count * jnp.sum(loads * masses, axis=1) / jnp.where(tokens > 0, tokens, 1)
        squares = jnp.square(jax.nn.logsumexp(logits, axis=-1))
        normalizer = self._over_positions(jnp.sum(self.weights * squares))
        return jnp.stack([jnp.sum(balance), normalizer])

    def _over_positions(self, x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, self.axes) if self.axes else x


def charge_routers(model: nnx.Module, charge: RouterCharge) -> None:
    """Lets every mixture of a model be charged; what runs blocks by itself passes it on."""
    taken: list[tuple[Any, ...]] = []
    for path, module in sorted(nnx.iter_modules(model), key=lambda item: len(item[0])):
        inside = any(path[: len(outer)] == outer for outer in taken)
        if hasattr(module, "router_charge") and not inside:
            charged: Any = module
            charged.router_charge = nnx.data(charge)
            taken.append(path)


@jax.custom_vjp
def _charge_loss(y: jax.Array, loss: jax.Array) -> jax.Array:
    """y; the gradient of `loss`, a scalar, is 1."""
    return y


def _forward(y: jax.Array, loss: jax.Array) -> tuple[jax.Array, jax.Array]:
    return y, loss


def _backward(loss: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gradient, vary(jnp.ones_like(loss), tuple(varying_axes(loss)))


_charge_loss.defvjp(_forward, _backward)
