"""Losses of routers in a step: what is added to the loss of a mixture of experts."""

from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from launch.errors import ModelError
from launch.settings import check_settings, setting
from launch.training.objectives import Batch, Loss
from models.layers.moe import MoE
from models.layers.router_losses import LOSSES, RouterCharge, charge_routers
from models.parameters import Parameters
from models.pretrained import Described

PATH = "blocks.*.router_losses"
"""The losses' factors among what is differentiated by, FP32 [rows, 2], of which the first row is
used: their gradients are the losses. A pipeline takes them for a stack of its blocks."""


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """Factors of the losses, which are means over tokens and layers."""

    router_aux_loss_coef: float = setting(
        0.0, "Factor of the load balancing loss of mixtures of experts.", lowest=0.0
    )
    router_z_loss_coef: float = setting(
        0.0, "Factor of the z-loss of the routers of mixtures of experts.", lowest=0.0
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def of(self, model: Described, module: nnx.Module, batch: Batch) -> "RouterLosses | None":
        """The losses of a model, given too as a module of abstract parameters; None if there are to
        be none. Raises ModelError for what has no routers, or rows that are no texts."""
        factors = {name: factor for name, factor in asdict(self).items() if factor}
        if not factors:
            return None
        flag = " ".join(f"--{name}={factor:g}" for name, factor in factors.items())
        layers = sum(isinstance(layer, MoE) for _, layer in nnx.iter_modules(module))
        if not layers:
            raise ModelError(
                f"{flag} is for mixtures of experts, and {model.architecture.name} with this "
                "config has none. Leave it out."
            )
        if "tokens" not in batch or getattr(batch.get("weights"), "ndim", None) != 2:
            raise ModelError(
                f"{flag} is for rows that are a text each, and those of this task are not: they "
                f"have {', '.join(batch)}. Leave it out."
            )
        return RouterLosses((self.router_aux_loss_coef, self.router_z_loss_coef), layers)


@dataclass(frozen=True)
class RouterLosses:
    """Losses of all routers of a model."""

    factors: tuple[float, float]  # by LOSSES
    layers: int  # that have a router

    def learning(self, rows: int) -> Parameters:
        """What a step differentiates by, beside the parameters."""
        return {PATH: jnp.tile(jnp.array(self.factors, jnp.float32), (rows, 1))}

    def charge(
        self, module: nnx.Module, learning: Parameters, batch: Batch, axes: tuple[str, ...]
    ) -> None:
        """Lets the routers of a module be charged for a batch, whose positions the cores along
        `axes` share."""
        if PATH in learning:
            factors = learning[PATH][0] / self.layers
            weights = batch["weights"].astype(jnp.float32)
            charge_routers(module, RouterCharge(factors, weights, axes))

    def added(self, loss: Loss, sums: jax.Array) -> Loss:
        """A loss over all cores with those of its routers, sums FP32 [2], which it reports too."""
        total = loss.total + jnp.dot(jnp.array(self.factors, jnp.float32), sums)
        plain: dict[str, Any] = {"nats": loss.total, **loss.metrics}
        return Loss(total, loss.weight, plain | dict(zip(LOSSES, sums, strict=True)))


NO_ROUTER_LOSSES = RouterSettings()
