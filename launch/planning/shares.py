"""How many parameters a core has, between steps and in a step, and what it sends for them."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from launch.planning.question import Question, described_by
from launch.training.initialisation import initialisation
from launch.training.layout import ZERO, make_layout
from launch.training.optimizers import make_optimizer
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS
from launch.training.schedules import make_schedule
from models.parameters import axis_names_of
from models.sharding import FULLY_SHARDED, split_axes


@dataclass(frozen=True)
class Share:
    """A core's part of one parameter, in elements."""

    in_block: bool
    held: int
    """Elements of masters and moments, which a core holds between steps."""
    used: int
    """Elements in a step, as gradients and what is rounded for layers: without ZeRO-1."""
    axes: frozenset[str]
    """Mesh axes that split it between steps."""


@dataclass(frozen=True)
class Sizes:
    """The bytes that one element of a parameter takes."""

    weight: int
    optimizer: float
    compute: int
    gradient: int
    """Bytes of an element of the gradients' sums over micro-batches."""

    @property
    def in_step(self) -> int:
        """The bytes that a step keeps for an element from its first micro-batch to its last: the
        gradient's sum, and the weight as layers take it if that is another array."""
        return self.gradient + (self.compute if self.compute != self.weight else 0)


class Shares:
    """The parameters of a model, of which one block stands for all."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._model = described_by(question.model)
        self.of = functools.cache(self._of)
        self.sizes = functools.cache(self._sizes)

    @functools.cached_property
    def _made(self) -> tuple[Any, Any]:
        """Shapes of a model of one block, and the names of their axes."""
        model = self._model
        config = replace(model.config, num_layers=1)
        first = initialisation(lambda: model.architecture.build(config, 0))
        return first.shapes, axis_names_of(first.graph, first.shapes)

    def _of(self, parallelism: Parallelism, precision: str) -> Sequence[Share]:
        """A core's parts. Raises MeshError if the mesh does not divide them."""
        shapes, axes = self._made
        fitted = parallelism.fitted(self._model.config)
        mesh = fitted.abstract_mesh()
        specs = make_layout(mesh, shapes, axes, zero=fitted.zero_1).specs
        shares = []
        for path, spec in specs.items():
            by = [axis for part in split_axes(spec) for axis in part]
            size = math.prod(shapes[path].shape)
            held = size // math.prod(mesh.shape[axis] for axis in by)
            used = size // math.prod(mesh.shape[axis] for axis in by if axis != ZERO)
            shares.append(Share(path.startswith("blocks."), held, used, frozenset(by)))
        return tuple(shares)

    def _sizes(self, name: str) -> Sizes:
        """Bytes per element with a precision recipe and the question's optimizer."""
        precision = PRECISIONS[name]
        shapes, axes = self._made
        weights = {
            path: jax.ShapeDtypeStruct(shape.shape, precision.weights_dtype)
            for path, shape in shapes.items()
        }
        config = self._question.config(Parallelism(), name, 1)
        schedule = make_schedule(config.schedule, config.steps)
        optimizer = make_optimizer(config.optimizer, schedule, axes)
        state = jax.tree.leaves(jax.eval_shape(optimizer.init, weights))
        elements = sum(math.prod(shape.shape) for shape in shapes.values())
        return Sizes(
            weight=jnp.dtype(precision.weights_dtype).itemsize,
            optimizer=sum(leaf.size * leaf.dtype.itemsize for leaf in state) / elements,
            compute=jnp.dtype(precision.compute_dtype).itemsize,
            gradient=jnp.dtype(precision.accumulation_dtype).itemsize,
        )


def held(shares: Sequence[Share], layers: int) -> int:
    """Elements of a core between steps, with so many blocks."""
    return sum(share.held * (layers if share.in_block else 1) for share in shares)


def used(shares: Sequence[Share], layers: int) -> int:
    """Elements of a core in a step, with so many blocks."""
    return sum(share.used * (layers if share.in_block else 1) for share in shares)


def is_gathered(share: Share) -> bool:
    """Whether layers need more of it than a core has in a step."""
    return FULLY_SHARDED in share.axes
