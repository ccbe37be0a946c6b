"""Optimizers of optax by name; what decays, and what Muon takes, goes by kind of parameter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import optax
from optax import contrib

from launch.settings import check_settings, setting
from launch.training.parameter_kinds import Kind, kinds_of, matrix_axes
from models.parameters import AxisNames
from models.sharding import axis_names

_ADAMW_RMS = 0.2
"""Root mean square of Muon's updates, as large as AdamW's, so that learning rate and weight decay
mean the same for both. Liu et al., "Muon is Scalable for LLM Training", 2025, 2.2."""


def _adamw(
    settings: "OptimizerSettings", schedule: optax.Schedule, axes: AxisNames
) -> optax.GradientTransformation:
    """Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019."""
    return optax.adamw(
        schedule,
        b1=settings.adam_beta1,
        b2=settings.adam_beta2,
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        mask=settings.decays,
    )


def _adafactor(
    settings: "OptimizerSettings", schedule: optax.Schedule, axes: AxisNames
) -> optax.GradientTransformation:
    """Shazeer and Stern, 2018. The learning rate is relative to the size of each parameter."""
    return optax.chain(
        _factored_rms(axes),
        _by_block(optax.clip_by_block_rms(1.0), axes),
        optax.scale_by_learning_rate(schedule, flip_sign=False),
        _by_block(optax.scale_by_param_block_rms(), axes),
        # After the learning rate, so the decay is scaled by itself.
        optax.add_decayed_weights(
            lambda count: settings.weight_decay * schedule(count), mask=settings.decays
        ),
        optax.scale(-1),
    )


def _by_block(
    stateless: optax.GradientTransformation, axes: AxisNames
) -> optax.GradientTransformation:
    """The transformation of every parameter, and of every block where those of blocks are stacked
    along the first axis."""

    def of_one(update: jax.Array, parameter: jax.Array) -> jax.Array:
        changed: jax.Array = stateless.update(update, optax.EmptyState(), parameter)[0]
        return changed

    def of_all(updates: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {
            path: (jax.vmap(of_one) if _is_stack(path, axes) else of_one)(update, parameters[path])
            for path, update in updates.items()
        }

    return optax.stateless(of_all)


def _factored_rms(axes: AxisNames) -> optax.GradientTransformation:
    """`optax.scale_by_factored_rms`, whose state of a stack of blocks is the stack of theirs."""
    plain = optax.scale_by_factored_rms()
    rows = optax.FactoredState(count=None, v_row=0, v_col=0, v=0)

    def joined(states: Mapping[str, optax.FactoredState]) -> optax.FactoredState:
        count = next(iter(states.values())).count
        parts = ({path: state[part] for path, state in states.items()} for part in (1, 2, 3))
        return optax.FactoredState(count, *parts)

    def first(parameters: Mapping[str, Any]) -> optax.FactoredState:
        return joined(
            {
                path: (
                    jax.vmap(plain.init, out_axes=rows) if _is_stack(path, axes) else plain.init
                )(parameter)
                for path, parameter in parameters.items()
            }
        )

    def update(
        updates: Mapping[str, Any], state: optax.FactoredState, parameters: Mapping[str, Any]
    ) -> tuple[dict[str, jax.Array], optax.FactoredState]:
        results = {}
        for path, gradient in updates.items():
            of_one = plain.update
            if _is_stack(path, axes):
                of_one = jax.vmap(of_one, in_axes=(0, rows, 0), out_axes=(0, rows))
            own = optax.FactoredState(state.count, *(part[path] for part in state[1:]))
            results[path] = of_one(gradient, own, parameters[path])
        scaled = {path: result for path, (result, _) in results.items()}
        return scaled, joined({path: after for path, (_, after) in results.items()})

    return optax.GradientTransformation(first, update)


def _is_stack(path: str, axes: AxisNames) -> bool:
    return "layers" in axis_names(path, axes)


def _lion(
    settings: "OptimizerSettings", schedule: optax.Schedule, axes: AxisNames
) -> optax.GradientTransformation:
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, with its constants."""
    return optax.lion(
        schedule, b1=0.9, b2=0.99, weight_decay=settings.weight_decay, mask=settings.decays
    )


def _muon(
    settings: "OptimizerSettings", schedule: optax.Schedule, axes: AxisNames
) -> optax.GradientTransformation:
    """Jordan et al., 2024, for matrices; AdamW for all other parameters."""

    def dimensions(masked: Mapping[str, Any]) -> dict[str, Any]:
        return {
            path: None
            if isinstance(parameter, optax.MaskedNode)
            else contrib.MuonDimensionNumbers(*matrix_axes(path, axes))
            for path, parameter in masked.items()
        }

    matrices = contrib.muon(
        schedule,
        weight_decay=settings.weight_decay,
        muon_weight_dimension_numbers=dimensions,
        consistent_rms=_ADAMW_RMS,
    )
    return optax.partition(
        {"matrices": matrices, "others": _adamw(settings, schedule, axes)},
        lambda parameters: {
            path: "matrices" if kind is Kind.MATRIX else "others"
            for path, kind in kinds_of(parameters).items()
        },
    )


OPTIMIZERS: Mapping[
    str,
    Callable[["OptimizerSettings", optax.Schedule, AxisNames], optax.GradientTransformation],
] = {"adamw": _adamw, "adafactor": _adafactor, "lion": _lion, "muon": _muon}
"""Name -> what makes it of its settings, the learning rate and the names of axes."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """How gradients become updates. Raises SettingsError for what cannot be."""

    optimizer: str = setting("adamw", "How gradients become updates.", choices=OPTIMIZERS)
    adam_beta1: float = setting(0.9, "Decay of Adam's mean of gradients.", lowest=0.0, below=1.0)
    adam_beta2: float = setting(
        0.95, "Decay of Adam's mean of their squares.", lowest=0.0, below=1.0
    )
    adam_epsilon: float = setting(
        1e-8, "What Adam adds to the root of that mean (epsilon).", lowest=0.0
    )
    weight_decay: float = setting(
        0.1, "Weight decay of matrices and embeddings, relative to the learning rate.", lowest=0.0
    )
    decay_embeddings: bool = setting(True, "Decay embeddings and the head as well as matrices.")

    ema_decay: float | None = setting(
        None,
        "Decay of a moving average of the weights, which is then evaluated and exported "
        "in their place; default: no average.",
        lowest=0.0,
        below=1.0,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def decays(self, parameters: Mapping[str, Any]) -> dict[str, bool]:
        """Which parameters weight decay pulls towards zero."""
        kinds = {Kind.MATRIX} | ({Kind.EMBEDDING} if self.decay_embeddings else set())
        return {path: kind in kinds for path, kind in kinds_of(parameters).items()}


def make_optimizer(
    settings: OptimizerSettings, schedule: optax.Schedule, axes: AxisNames
) -> optax.GradientTransformation:
    """Gradients of parameters, by path, to updates to be added.

    `axes` names the parameters' axes. The state is of the dtype of the parameters.
    """
    return OPTIMIZERS[settings.optimizer](settings, schedule, axes)
