"""AdamW with warm-up and cosine decay."""

from typing import Any

import jax
import optax

from launch.config import TrainConfig


def learning_rate_schedule(config: TrainConfig) -> optax.Schedule:
    """Step -> learning rate: linear warm-up, then a cosine to a tenth of the peak."""
    return optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / (config.warmup_steps + 1),
        peak_value=config.learning_rate,
        warmup_steps=min(config.warmup_steps, config.steps - 1),
        decay_steps=config.steps,
        end_value=config.learning_rate / 10,
    )


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter, 2019); the step clips the gradients before."""
    return optax.adamw(
        learning_rate_schedule(config),
        b2=0.95,
        weight_decay=config.weight_decay,
        mask=_decays,
    )


def _decays(parameters: Any) -> Any:
    """True for matrices; norm scales are left alone."""
    return jax.tree.map(lambda parameter: parameter.ndim > 1, parameters)
