"""``torch.autograd.Function`` in a traced module: its ``backward`` is the gradient JAX takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import torch
from torchax.tensor import Tensor
from torchax.view import View

from neuronjax.errors import UnsupportedProgramError
from neuronjax.torch.environment import ModuleEnvironment

_Base: Any = torch.autograd.function._SingleLevelFunction
"""What ``Function.apply`` calls the method of its base through, however long ago it was bound."""


class _Context:
    """What a function's passes hand on: the tensors it saves, and its own attributes."""

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(needs_input_grad)
        self.saved_tensors: tuple[torch.Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *_: torch.Tensor) -> None:
        """Leaves the gradients of such results out of account, as ``backward`` does."""

    def set_materialize_grads(self, value: bool) -> None:
        """Changes nothing: gradients of results that nothing reads are zeros."""

    def mark_dirty(self, *_: torch.Tensor) -> None:
        raise UnsupportedProgramError(
            "a torch.autograd.Function writes to its input in place (ctx.mark_dirty), which a "
            "function of JAX cannot; return a new tensor."
        )


@contextlib.contextmanager
def own_gradients(environment: ModuleEnvironment) -> Iterator[None]:
    """Calls of ``torch.autograd.Function`` are differentiated by their own ``backward`` until the
    block ends. Those of integers alone, such as masks that transformers makes by ``vmap``, have
    nothing to differentiate and stay PyTorch's."""

    def apply(cls: type[Any], *given: Any) -> Any:
        if not any(isinstance(v, Tensor | View) and v.is_floating_point() for v in given):
            return super(_Base, cls).apply(*given)
        return _differentiable(environment, cls, given)

    _Base.apply = classmethod(apply)
    try:
        yield
    finally:
        del _Base.apply


def _differentiable(environment: ModuleEnvironment, cls: type[Any], given: Sequence[Any]) -> Any:
    """Calls a function as one of JAX that has a gradient of its own."""
    places = [at for at, value in enumerate(given) if isinstance(value, torch.Tensor)]
    needed = [isinstance(value, torch.Tensor) and value.is_floating_point() for value in given]
    contexts: list[tuple[Any, list[Any]]] = []  # of the forward pass, without its tensors

    def run(arrays: Sequence[jax.Array]) -> tuple[_Context, Any]:
        arguments = list(given)
        for at, array in zip(places, arrays, strict=True):
            arguments[at] = environment.tensor(array)
        context = _Context(needed)
        with _enter(environment):
            return context, environment.t2j_iso(passed(context, arguments))

    def passed(context: _Context, arguments: Sequence[Any]) -> Any:
        if cls.setup_context is torch.autograd.Function.setup_context:
            return cls.forward(context, *arguments)
        result = cls.forward(*arguments)
        cls.setup_context(context, tuple(arguments), result)
        return result

    @jax.custom_vjp
    def call(*arrays: jax.Array) -> Any:
        return run(arrays)[1]

    def forward(*arrays: jax.Array) -> tuple[Any, list[Any]]:
        context, result = run(arrays)
        leaves, structure = jax.tree.flatten(vars(context))
        is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        held = [leaf for leaf, kept in zip(leaves, is_tensor, strict=True) if kept]
        plain = [None if kept else leaf for leaf, kept in zip(leaves, is_tensor, strict=True)]
        contexts[:] = [(structure, plain)]
        return result, [environment.t2j_iso(leaf) for leaf in held]

    def backward(held: list[Any], gradients: Any) -> tuple[Any, ...]:
        ((structure, plain),) = contexts
        tensors = map(environment.tensor, held)
        leaves = [next(tensors) if leaf is None else leaf for leaf in plain]
        context = _Context(needed)
        vars(context).update(structure.unflatten(leaves))
        several = gradients if isinstance(gradients, tuple) else (gradients,)
        with _enter(environment):
            results = cls.backward(context, *map(_gradient(environment), several))
            results = results if isinstance(results, tuple) else (results,)
            return tuple([environment.t2j_iso(results[at]) for at in places])

    call.defvjp(forward, backward)
    return environment.j2t_iso(call(*[environment.t2j_iso(given[at]) for at in places]))


@contextlib.contextmanager
def _enter(environment: ModuleEnvironment) -> Iterator[None]:
    """Computes on arrays, also when JAX asks for a gradient after the module has returned."""
    with contextlib.nullcontext() if environment.enabled else environment, torch.no_grad():
        yield


def _gradient(environment: ModuleEnvironment) -> Any:
    """Gives JAX's gradient of a result as a tensor; integers have none."""
    return lambda array: None if array.dtype == jax.dtypes.float0 else environment.tensor(array)
