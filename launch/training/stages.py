"""How a model is cut into the stages of a pipeline."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from launch.errors import MeshError
from launch.training.core_model import CoreModel
from launch.training.objectives import Batch, Objective
from launch.training.parallelism import Parallelism
from launch.training.pipeline import Pipeline, Place, Stages
from launch.training.pipeline_schedule import make_schedule
from launch.training.router_losses import RouterLosses
from models.layers.dropout import set_dropout

Rows = tuple[Batch, jax.Array | None]  # of a micro-batch, and their keys


class _LastStage(nnx.Module):
    """What an objective sees of a model whose blocks have run."""

    def __init__(self, model: Any, x: jax.Array) -> None:
        self.model, self.x = model, nnx.data(x)
        self.vocabulary_axes, self.cross_entropy = model.vocabulary_axes, model.cross_entropy

    def __call__(self, tokens: jax.Array, **where: jax.Array) -> jax.Array:
        """Logits of the residual stream; the tokens are those that it was made of."""
        logits: jax.Array = self.model.logits(self.x)
        return logits


@dataclass(frozen=True)
class ModelStages:
    """The parts of a decoder's loss: functions of a core's parameters, as of `Stages`."""

    model: CoreModel
    objective: Objective
    routers: RouterLosses | None = None

    def parts(self) -> Stages:
        """The parts as a pipeline takes them."""
        return Stages(self.embed, self.run, self.loss, shared=self.model.splits_vocabulary)

    def embed(self, parameters: Any, rows: Rows) -> jax.Array:
        """The residual stream before the first block."""
        model = self.model(parameters)
        x: jax.Array = model.embed(rows[0]["tokens"], _positions(model, rows[0]))
        return x

    def run(self, parameters: Any, x: jax.Array, rows: Rows, place: Place) -> jax.Array:
        """The residual stream behind the blocks of a chunk."""
        batch, keys = rows
        model = self.model(parameters)
        if keys is not None:
            set_dropout(model, keys)
        if self.routers is not None:
            self.routers.charge(model, parameters, batch, self.model.position_axes)
        for blocks in model.blocks:
            blocks.take_place(place.first, place.layers)
        run: jax.Array = model.run(x, _positions(model, batch))
        return run

    def loss(self, parameters: Any, x: jax.Array, rows: Rows) -> tuple[jax.Array, Any]:
        """What is minimised, and the sums of the objective."""
        loss = self.objective(_LastStage(self.model(parameters), x), *rows)
        return loss.total, loss


def _positions(model: Any, batch: Mapping[str, jax.Array]) -> Any:
    """The positions of the tokens of a batch, as the model takes them."""
    packed = {name: batch[name] for name in ("segments", "positions") if name in batch}
    return model.positions(batch["tokens"].shape[1], **packed)


def make_pipeline(
    parallelism: Parallelism, axes: tuple[str, ...], shapes: Mapping[str, Any], batch: Batch
) -> Pipeline:
    """The pipeline of a model with parameters of these shapes, by path, not stacked.

    Raises MeshError if its blocks, or the objective's batch, cannot be shared out.
    """
    if "tokens" not in batch or not any(path.startswith("embedding.") for path in shapes):
        raise MeshError(
            f"a pipeline trains decoders on batches of tokens, not on {', '.join(batch)}. Use a "
            "mesh without stage."
        )
    stages, rounds = parallelism.pipeline_parallel_size, parallelism.virtual_pipeline_parallel_size
    micro_batches = parallelism.pipeline_parallel_num_microbatches or 2 * stages
    schedule = make_schedule(parallelism.pipeline_schedule, stages, micro_batches, rounds)
    return Pipeline(schedule, _layers(parallelism, shapes), axes)


def _layers(parallelism: Parallelism, shapes: Mapping[str, Any]) -> tuple[int, ...]:
    """How many blocks each chunk has."""
    blocks = len({path.split(".")[1] for path in shapes if path.startswith("blocks.")})
    chunks = parallelism.pipeline_parallel_size * parallelism.virtual_pipeline_parallel_size
    if blocks < chunks:
        raise MeshError(
            f"a pipeline of {chunks} chunks needs at least {chunks} blocks, and the model has "
            f"{blocks}. Choose fewer stages, or fewer chunks per stage."
        )
    if parallelism.pipeline_cuts is not None:
        return _read_cuts(parallelism.pipeline_cuts, blocks, chunks)
    return evenly(blocks, chunks)


def evenly(blocks: int, chunks: int) -> tuple[int, ...]:
    """Blocks of each chunk: as many, or one more in the first ones. Embedding and head count for
    nothing, as all stages have a part of them."""
    size, more = divmod(blocks, chunks)
    return tuple(size + (number < more) for number in range(chunks))


def _read_cuts(cuts: str, blocks: int, chunks: int) -> tuple[int, ...]:
    try:
        edges = [0, *map(int, cuts.split(",")), blocks]
    except ValueError:
        edges = []
    layers = tuple(end - start for start, end in itertools.pairwise(edges))
    if len(layers) != chunks or any(count < 1 for count in layers):
        raise MeshError(
            f"--pipeline_cuts={cuts} does not cut {blocks} blocks into {chunks} chunks: give "
            f"{chunks - 1} rising numbers of blocks from 1 to {blocks - 1}, such as "
            f"{','.join(str(blocks * n // chunks) for n in range(1, chunks))}."
        )
    return layers
