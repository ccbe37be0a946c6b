"""The parameters that a training begins with: blocks that are alike are drawn together, so that a
deep model takes no longer to compile than a flat one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from models.parallel.depth import Order, paths_of_stacks
from models.parameters import Parameters, split

_KEY = "random_fold_in"
"""The primitive that makes the key of a random array, of the model's root key and a count."""


@dataclass(frozen=True, eq=False)
class Initialisation:
    """A model that was traced once, and the program that makes its parameters."""

    graph: nnx.GraphDef[Any]
    shapes: Parameters  # jax.ShapeDtypeStruct, in the order of the program's results
    program: ClosedJaxpr

    def parameters(self) -> Parameters:
        """All parameters."""
        return self._make_parameters(list(self.shapes))

    def stacked(self, order: Order | None) -> Parameters:
        """All parameters, those of blocks stacked as `models.parallel.depth.stack` does."""
        stacks = paths_of_stacks(self.shapes)
        in_blocks = {path for paths in stacks.values() for path in paths}
        drawn = self._make_parameters([path for path in self.shapes if path not in in_blocks])
        return drawn | {path: self._stack(paths, order) for path, paths in stacks.items()}

    def _make_parameters(self, paths: Sequence[str]) -> Parameters:
        results = [self._result(path) for path in paths]
        return dict(zip(paths, self._run(self._slice(results), results), strict=True))

    def _stack(self, paths: Sequence[str], order: Order | None) -> jax.Array:
        """What blocks have of a parameter, along a new first axis.

        The programs of blocks that are alike differ in the counts of their keys alone, so that of
        the first is mapped over counts: in a loop, since compilers take longer for larger arrays.
        """
        rows = range(len(paths)) if order is None else order
        slices = [self._slice([self._result(path)]) for path in paths]
        if len({_form(eqns) for eqns in slices}) > 1:
            blocks = [*self._make_parameters(paths).values()]
            return jnp.stack([jnp.zeros_like(blocks[0]) if n is None else blocks[n] for n in rows])
        counts = np.array([_counts(slices[n or 0]) for n in rows], np.uint32)  # [rows, keys]

        def draw(counts: jax.Array) -> Any:
            return self._run(slices[0], [self._result(paths[0])], iter(counts))[0]

        drawn: jax.Array = jax.lax.map(draw, counts)
        used = np.array([n is not None for n in rows])
        return drawn if used.all() else jax.vmap(jnp.where)(used, drawn, jnp.zeros_like(drawn))

    def _result(self, path: str) -> Any:
        return self.program.jaxpr.outvars[list(self.shapes).index(path)]

    def _slice(self, results: Sequence[Any]) -> list[JaxprEqn]:
        """The part of the program that gives some of its results."""
        needed = {result for result in results if not isinstance(result, Literal)}
        part = []
        for eqn in reversed(self.program.jaxpr.eqns):
            if needed.intersection(eqn.outvars):
                needed.update(v for v in eqn.invars if not isinstance(v, Literal))
                part.append(eqn)
        return part[::-1]

    def _run(
        self,
        part: Sequence[JaxprEqn],
        results: Sequence[Any],
        counts: Iterator[Any] | None = None,
    ) -> list[Any]:
        """Results of a part of the program, with other counts of its keys if they are given.

        Compilers do not see that counts are constants: they would draw the numbers themselves.
        """
        values = dict(zip(self.program.jaxpr.constvars, self.program.consts, strict=True))

        def value(operand: Any) -> Any:
            return operand.val if isinstance(operand, Literal) else values[operand]

        for eqn in part:
            operands = [value(operand) for operand in eqn.invars]
            if eqn.primitive.name == _KEY:
                count = operands[1] if counts is None else next(counts)
                operands[1] = jax.lax.optimization_barrier(count)
            made = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
            made = made if eqn.primitive.multiple_results else [made]
            values.update(zip(eqn.outvars, made, strict=True))
        return [value(result) for result in results]


def initialisation(build: Callable[[], nnx.Module]) -> Initialisation:
    """Traces the making of a model."""
    graph: Any = None

    def parameters() -> Parameters:
        nonlocal graph
        graph, parameters = split(build())
        return parameters

    program, shapes = jax.make_jaxpr(parameters, return_shape=True)()
    return Initialisation(graph, shapes, program)


def _counts(part: Sequence[JaxprEqn]) -> list[Any]:
    return [eqn.invars[1].val for eqn in part if eqn.primitive.name == _KEY]


def _form(part: Sequence[JaxprEqn]) -> tuple[Any, ...]:
    """Equal for parts that differ in the counts of their keys alone."""
    return tuple(
        (
            eqn.primitive.name,
            *(str(result.aval) for result in eqn.outvars),
            *(
                str(v.val)
                for v in eqn.invars
                if isinstance(v, Literal) and eqn.primitive.name != _KEY
            ),
        )
        for eqn in part
    )
