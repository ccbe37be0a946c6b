"""A forward pass now and its backward pass later: what has to be kept between the two.

`jax.vjp` gives a backward pass and the arrays that it needs, its residuals. Those that come from
the weights alone (their casts, what cores gather of them) are the same for every input, and are
made again; the others are kept. What `jax.checkpoint` makes again within the pass is no residual.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr


@dataclass(frozen=True, eq=False)
class SplitPass:
    """A function of weights and inputs in two halves: `forward`, and `backward` at any time."""

    program: ClosedJaxpr  # (learnt, fixed, inputs, others) -> (outputs, residuals), all flat
    outputs: int
    dependent: tuple[bool, ...]
    """Whether an output or a residual depends on inputs or others."""
    output_tree: Any
    pull_tree: Any

    @property
    def kept(self) -> list[Any]:
        """The types of the arrays that `forward` returns to be kept."""
        return [
            aval
            for aval, is_kept in zip(self.program.out_avals, self.dependent, strict=True)
            if is_kept
        ]

    def forward(self, *arguments: Any) -> tuple[Any, list[jax.Array]]:
        """Returns the outputs, and the arrays that `backward` needs; the outputs are among them."""
        kept = self._run(self.dependent, *arguments)
        return self._outputs(kept), kept

    def backward(
        self, kept: Sequence[jax.Array], *arguments: Any
    ) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        """Returns the outputs, and the function that turns their gradients into those of `learnt`
        and `inputs`.

        Weights are those of the forward pass. Of inputs and others only the types count.
        """
        again = iter(self._run([not is_kept for is_kept in self.dependent], *arguments))
        own = iter(kept)
        values = [next(own) if is_kept else next(again) for is_kept in self.dependent]
        return self._outputs(values), jax.tree.unflatten(self.pull_tree, values[self.outputs :])

    def _outputs(self, values: Sequence[jax.Array]) -> Any:
        return jax.tree.unflatten(self.output_tree, values[: self.outputs])

    def _run(self, wanted: Sequence[bool], *arguments: Any) -> list[jax.Array]:
        jaxpr, _ = dce_jaxpr(self.program.jaxpr, list(wanted), instantiate=True)
        run = jaxpr_as_fun(ClosedJaxpr(jaxpr, self.program.consts))
        return list(run(*jax.tree.leaves(arguments)))


def split_pass(
    function: Callable[..., Any], learnt: Any, fixed: Any, inputs: Any, others: Any
) -> SplitPass:
    """Traces `function(learnt, fixed, inputs, others)` for arguments of these types.

    `learnt` and `fixed` are weights. Gradients by `learnt` and by `inputs` are wanted; `others`
    differ from pass to pass as inputs do.
    """
    trees: list[Any] = []

    def forward(learnt: Any, fixed: Any, inputs: Any, others: Any) -> list[jax.Array]:
        output, pull = jax.vjp(
            lambda learnt, inputs: function(learnt, fixed, inputs, others), learnt, inputs
        )
        outputs, output_tree = jax.tree.flatten(output)
        residuals, pull_tree = jax.tree.flatten(pull)
        trees[:] = len(outputs), output_tree, pull_tree
        return [*outputs, *residuals]

    program = jax.make_jaxpr(forward)(learnt, fixed, inputs, others)
    count, output_tree, pull_tree = trees
    weights = len(jax.tree.leaves((learnt, fixed)))
    depends = [at >= weights for at in range(len(program.in_avals))]
    dependent = _find_dependent(program.jaxpr, depends)
    dependent[:count] = [True] * count
    return SplitPass(program, count, tuple(dependent), output_tree, pull_tree)


def _find_dependent(jaxpr: Jaxpr, inputs: Sequence[bool]) -> list[bool]:
    """Finds which results of a program depend on some of its inputs, a flag for each result."""
    dependent = {var for var, depends in zip(jaxpr.invars, inputs, strict=True) if depends}

    def depends(atoms: Sequence[Any]) -> list[bool]:
        return [not isinstance(atom, Literal) and atom in dependent for atom in atoms]

    for eqn in jaxpr.eqns:
        given = depends(eqn.invars)
        if eqn.primitive.name == "scan":
            results = _find_dependent_of_scan(eqn, given)
        else:
            results = [any(given)] * len(eqn.outvars)
        dependent |= {var for var, is_one in zip(eqn.outvars, results, strict=True) if is_one}
    return depends(jaxpr.outvars)


def _find_dependent_of_scan(eqn: JaxprEqn, given: Sequence[bool]) -> list[bool]:
    """Finds which results of a scan depend on the given operands: what a trip carries on depends
    on what it was given, until no more of it does."""
    body, before = eqn.params["jaxpr"].jaxpr, eqn.params["num_consts"]
    behind = before + eqn.params["num_carry"]
    now = list(given)
    while True:
        results = _find_dependent(body, now)
        carried = [a or b for a, b in zip(now[before:behind], results, strict=False)]
        if carried == now[before:behind]:
            return results
        now[before:behind] = carried
