"""What a step of a run would take on its target, without running it."""

from dataclasses import replace
from typing import Any

from jax.sharding import AbstractMesh

from launch import checkpoints
from launch.config import TrainConfig
from launch.emulation import Estimate, estimate_factory, target_in_use
from launch.job import row_length
from launch.presets.recipe import Recipe
from launch.training.objectives import text_batch
from launch.training.optimizers import make_optimizer
from launch.training.schedules import make_schedule
from launch.training.step import make_training
from models.pretrained import Described


def estimate(
    model: Described, config: TrainConfig, recipe: Recipe | None, price: float | None
) -> Estimate:
    """Time, memory, traffic and price (US dollars of an instance and hour) of one step on the
    recipe's instances, or on the cores of the platform in use.

    Deep models follow from shallow ones. Raises LaunchError for what cannot be run.
    """
    target, cores = target_in_use()
    if recipe is not None and not recipe.is_tiny:
        target, cores = recipe.target, recipe.cores
    depth: int = model.config.num_layers
    seq_len = row_length(config.seq_len, model.config.max_seq_len)
    parallelism = config.parallelism.on(config.mesh, cores, model.config, config.batch_size)
    precision = config.precision.resolve()

    def make(mesh: AbstractMesh, layers: int | None = None) -> dict[str, Any]:
        settings = replace(model.config, num_layers=layers or depth)
        shallow = model._replace(config=precision.configure(settings))
        schedule = make_schedule(config.schedule, config.steps)
        training = make_training(
            shallow,
            make_optimizer(config.optimizer, schedule, shallow.axis_names()),
            parallelism,
            precision,
            mesh=mesh,
            batch=text_batch(config.batch_size, seq_len),
            clip_norm=config.clip_norm,
            ema_decay=config.optimizer.ema_decay,
            seed=config.seed,
        )
        state = checkpoints.abstract(training.state, training.shardings)
        batch = checkpoints.abstract(training.batch, training.batch_shardings)
        return {
            "fn": training.step,
            "arguments": (state, batch),
            "tokens": config.batch_size * seq_len,
            "samples": config.batch_size,
            "layers": depth,
        }

    stages = parallelism.pipeline_parallel_size
    depths = (3, 4) if stages == 1 else (2 * stages, 3 * stages)
    return estimate_factory(make, parallelism.abstract_mesh(), target, depths, price)
