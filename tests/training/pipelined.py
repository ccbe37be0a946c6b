"""A small model in a pipeline, for tests of its values, time and memory."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from launch.training.pipeline import Pipeline, Place, Stages
from launch.training.pipeline_schedule import Schedule
from models.varying import vary
from tests.quick_compile import QUICK_COMPILE

AXES = ("stage", "data", "model")
VOCAB, DIM, WIDTH, LAYERS = 16, 8, 16, 4


@dataclass(frozen=True)
class Model:
    """A residual network of blocks between an embedding and a head, and a batch of it."""

    dim: int = DIM
    width: int = WIDTH
    layers: int = LAYERS
    rows: int = 8
    length: int = 4
    split_vocabulary: bool = True  # over stages
    recompute: bool = False  # what is within blocks

    def parameters(self) -> dict[str, np.ndarray]:
        shapes = {
            "embedding": (VOCAB, self.dim),
            "blocks.*.up": (self.layers, self.dim, self.width),
            "blocks.*.down": (self.layers, self.width, self.dim),
            "head": (VOCAB, self.dim),
        }
        rng = np.random.default_rng(0)
        return {path: 0.3 * rng.normal(size=shape).astype("f4") for path, shape in shapes.items()}

    def batch(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(1)
        shape = (self.rows, self.length)
        return {name: rng.integers(0, VOCAB, shape).astype("i4") for name in ("tokens", "targets")}


def stages_of(*, tensor: bool, split: bool, recompute: bool = False) -> Stages:
    """The model's parts; with `tensor`, of cores that share the width along `model`; if `split`, of
    those that share the vocabulary along `stage`; if `recompute`, with blocks made again."""

    def embed(parameters: Any, rows: Any) -> jax.Array:
        table = jnp.asarray(parameters["embedding"])
        return over_stages(jax.nn.one_hot(rows["tokens"] - start(table), len(table)) @ table)

    def run(parameters: Any, x: jax.Array, rows: Any, place: Place) -> jax.Array:
        def block(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
            up, down, number = weights
            y = jnp.tanh(x @ up) @ down
            y = jax.lax.psum(y, "model") if tensor else y
            return x + (y if place.layers is None else jnp.where(number < place.layers, y, 0)), None

        stacks = (parameters["blocks.*.up"], parameters["blocks.*.down"])
        made = jax.checkpoint(block) if recompute else block
        return jax.lax.scan(made, x, (*stacks, jnp.arange(len(stacks[0]))))[0]

    def loss(parameters: Any, x: jax.Array, rows: Any) -> tuple[jax.Array, Any]:
        head = parameters["head"]
        logits = x @ head.T
        normalizer = jnp.log(over_stages(jnp.sum(jnp.exp(logits), axis=-1)))
        targets = jax.nn.one_hot(rows["targets"] - start(head), len(head))
        total = jnp.sum(normalizer - over_stages(jnp.sum(logits * targets, axis=-1)))
        # Cores along `model` have all the same.
        total = jax.lax.pmean(total, "model") if tensor else total
        return total, total

    def over_stages(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, "stage") if split else x

    def start(table: jax.Array) -> Any:
        return jax.lax.axis_index("stage") * len(table) if split else 0

    return Stages(embed, run, loss, shared=split)


def specs_of(model: Model) -> dict[str, P]:
    """How its parameters are split."""
    vocabulary = P("stage") if model.split_vocabulary else P()
    return {
        "embedding": vocabulary,
        "blocks.*.up": P("stage", None, "model"),
        "blocks.*.down": P("stage", "model", None),
        "head": vocabulary,
    }


def piped(
    model: Model, schedule: Schedule, layers: tuple[int, ...], sizes: tuple[int, int, int]
) -> tuple[Any, Any]:
    """The jitted function of parameters, stacked, and a batch; and their shardings."""
    mesh = jax.make_mesh(
        sizes, AXES, (AxisType.Auto,) * 3, devices=jax.devices("neuron")[: int(np.prod(sizes))]
    )
    pipeline, specs = Pipeline(schedule, layers, AXES), specs_of(model)
    stages = stages_of(tensor=True, split=model.split_vocabulary, recompute=model.recompute)

    def step(parameters: Any, batch: Any) -> Any:
        rows = jax.tree.map(lambda x: x.reshape(schedule.micro_batches, -1, x.shape[1]), batch)
        own = vary(parameters, AXES)
        gradients, total = pipeline.gradients(stages, own, rows)
        for path, spec in specs.items():
            split = {axis for axis in spec if axis is not None}
            others = tuple(axis for axis in AXES if axis not in split)
            gradients[path] = jax.lax.psum(gradients[path], others)
        total = jax.lax.psum(total, ("stage", "data"))
        return jax.lax.pmean(total, "model"), gradients

    region = jax.shard_map(step, mesh=mesh, in_specs=(specs, P("data")), out_specs=(P(), specs))
    shardings = (
        {path: NamedSharding(mesh, spec) for path, spec in specs.items()},
        NamedSharding(mesh, P("data")),
    )
    return jax.jit(region, in_shardings=shardings, compiler_options=QUICK_COMPILE), shardings


def compiled(schedule: Schedule, model: Model) -> jax.stages.Compiled:
    """The step of stages of equal numbers of layers."""
    chunks = schedule.stages * schedule.rounds
    step, _ = piped(model, schedule, (model.layers // chunks,) * chunks, (schedule.stages, 1, 1))
    arrays = (model.parameters(), model.batch())
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
    return step.lower(*shapes).compile()
