"""Estimates what a step of a run would take on its target, without running it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from absl import flags
from jax.sharding import AbstractMesh

from launch import checkpoints
from launch.config import TrainConfig
from launch.emulation import Estimate, estimate_factory, target_in_use
from launch.job import Job, row_length, with_capacity
from launch.presets.recipe import Recipe
from launch.training.objectives import Batch, LanguageModelling, Objective, text_batch
from launch.training.optimizers import make_optimizer
from launch.training.schedules import make_schedule
from launch.training.step import KINDS, make_training
from models.decoder.flops import training_flops
from models.pretrained import Described

Trained = tuple[Described, Collection[str] | None]
"""A model, and the paths of what the optimizer changes; None: all."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a step, whatever is in its rows.

    Attributes:
      at_depth: the model with so many blocks.
      config: that of the whole model.
      batch: shapes and dtypes, as jax.ShapeDtypeStruct.
      tokens: positions of a batch.
      flops: what MFU counts of the model with so many blocks; None: the products of the program.
    """

    at_depth: Callable[[int], Trained]
    config: Any
    batch: Batch
    tokens: int
    objective: Objective
    flops: Callable[[int], int] | None = None


def language_work(model: Described, config: TrainConfig) -> Work:
    """A decoder that is trained on text."""
    seq_len = row_length(config.seq_len, model.config.max_seq_len)
    precision = config.precision.resolve()
    model = with_capacity(model, config.expert_capacity_factor)

    def at_depth(layers: int) -> Trained:
        settings = replace(model.config, num_layers=layers)
        return model._replace(config=precision.configure(settings)), None

    return Work(
        at_depth=at_depth,
        config=model.config,
        batch=text_batch(config.batch_size, seq_len),
        tokens=config.batch_size * seq_len,
        objective=LanguageModelling(of_labels=config.of_labels),
        flops=lambda layers: training_flops(
            replace(model.config, num_layers=layers), config.batch_size, seq_len
        ),
    )


def tuning_work(job: Job, at_depth: Callable[[int], Trained], config: TrainConfig) -> Work:
    """A model that is fine-tuned for a task."""
    return Work(
        at_depth=at_depth,
        config=job.model.config,
        batch=job.data.shapes(config.batch_size),
        tokens=config.batch_size * job.texts * job.row_length,
        objective=job.objective,
    )


def estimate(
    work: Work, config: TrainConfig, recipe: Recipe | None, price: float | None
) -> Estimate:
    """The time, memory, traffic and price (from US dollars per instance-hour) of one step on the
    recipe's instances, or on the cores of the platform in use.

    Deep models are extrapolated from shallow ones. Raises LaunchError for what cannot be run.
    """
    target, cores = target_in_use()
    if recipe is not None and not recipe.is_tiny:
        target, cores = recipe.target, recipe.cores
    depth: int = work.config.num_layers
    parallelism = config.parallelism.on(config.mesh, cores, work.config, config.batch_size)
    fitted = replace(config, parallelism=parallelism)

    def make(mesh: AbstractMesh, layers: int | None = None) -> dict[str, Any]:
        made = step_workload(work, fitted, mesh, layers or depth)
        return {**made, "layers": depth}

    chunks = parallelism.pipeline_parallel_size * parallelism.virtual_pipeline_parallel_size
    depths = (3, 4) if chunks == 1 else (2 * chunks, 3 * chunks)
    return estimate_factory(make, parallelism.abstract_mesh(), target, depths, price)


def step_workload(
    work: Work, config: TrainConfig, mesh: AbstractMesh, layers: int
) -> dict[str, Any]:
    """A training step of a model of `layers` blocks, as a workload of `neuronjax estimate`.

    The sizes of the config's parallelism are those of the mesh. Raises LaunchError for what cannot
    be run.
    """
    model, trained = work.at_depth(layers)
    schedule = make_schedule(config.schedule, config.steps)
    training = make_training(
        model,
        partial(make_optimizer, config.optimizer, schedule),
        config.parallelism,
        config.precision.resolve(),
        mesh=mesh,
        batch=work.batch,
        objective=work.objective,
        router=config.router,
        dropout=config.dropout,
        kernels=config.kernels,
        trained=trained,
        clip_norm=config.clip_norm or None,
        ema_decay=config.optimizer.ema_decay,
        seed=config.seed,
    )
    state = checkpoints.abstract(training.state, training.shardings)
    batch = checkpoints.abstract(training.batch, training.batch_shardings)
    return {
        "fn": training.step,
        "arguments": (state, batch),
        "kinds": KINDS,
        "tokens": work.tokens,
        "model_flops": work.flops and work.flops(layers),
        "samples": config.batch_size,
    }


def define_estimate_flags() -> None:
    """Defines the flags that `print_estimate` reads."""
    flags.DEFINE_bool(
        "estimate", False, "Print the time, memory and price of a step without running it."
    )
    flags.DEFINE_bool(
        "explain_mesh",
        False,
        "Print which links each mesh axis uses and how much it sends over them, without running "
        "a step.",
    )
    flags.DEFINE_float("price", None, "US dollars per instance-hour, for --estimate.")


def print_estimate(
    work: Work, config: TrainConfig, recipe: Recipe | None, values: Mapping[str, Any]
) -> int:
    """Prints the estimate that the flags ask for; returns the exit code, 1 if the step does not
    fit."""
    estimated = estimate(work, config, recipe, values["price"])
    print(estimated if values["estimate"] else estimated.mesh_text())
    return 0 if estimated.fits else 1
