"""Calls of a module with arrays of JAX in the place of its tensors."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import torch
from torchax.tensor import OperatorNotFound, Tensor

from neuronjax.errors import NeuronError, UnsupportedProgramError, shown_line
from neuronjax.hlo.location import Frame, user_frame
from neuronjax.torch.differentiation import own_gradients
from neuronjax.torch.distributed import without_hooks
from neuronjax.torch.environment import ModuleEnvironment
from neuronjax.torch.scopes import Scopes, module_scopes
from neuronjax.torch.signature import called
from neuronjax.torch.sites import in_place
from neuronjax.torch.state import State
from neuronjax.torch.values import flatten


def call(
    module: torch.nn.Module, state: State, arguments: Mapping[str, Any], key: jax.Array | None
) -> tuple[Any, State]:
    """Calls ``forward`` with `arguments`, by name; returns its result and the state it leaves.

    Raises:
      UnsupportedProgramError: an operator has no counterpart in JAX, or the program depends on
        values.
    """
    environment = ModuleEnvironment()

    def tensors(tree: Any) -> Any:
        leaves, structure = flatten(tree)
        return structure.unflatten([environment.tensor(leaf) for leaf in leaves])

    def arrays(tree: Any) -> Any:
        leaves, structure = flatten(tree)
        return structure.unflatten([_array(leaf, environment) for leaf in leaves])

    given = tensors(dict(arguments))
    positional, keywords = called(module, given)
    before = [(leaf, leaf._elem) for leaf in flatten(given)[0] if isinstance(leaf, Tensor)]
    held = tensors({**state.parameters, **state.buffers})
    with (
        in_place(module, held) as now,
        without_hooks(module),
        module_scopes(module) as scopes,
        _report_place(scopes),
        _without_64_bits(),
        environment.override_property(prng=key),
        own_gradients(environment),
        torch.no_grad(),
        torch.compiler._compile_session_context(),  # what modules remember would be traced values
        environment,
    ):
        result = module(*positional, **keywords)
        returned = {id(leaf) for leaf in flatten(result)[0]}
        for leaf, value in before:
            if leaf._elem is not value and id(leaf) not in returned:
                raise _writing_error(arguments, value)
        return arrays(result), arrays(now())


def _writing_error(arguments: Mapping[str, Any], value: jax.Array) -> UnsupportedProgramError:
    """What to say of an input that ``forward`` writes to."""
    known = jax.tree_util.tree_flatten_with_path(dict(arguments))[0]
    names = (jax.tree_util.keystr(path, simple=True) for path, leaf in known if leaf is value)
    return UnsupportedProgramError(
        f"forward writes to its input {next(names, '')} in place, which a function of JAX cannot: "
        "the caller would not see it. Return what is new, or work on a copy: x = x.clone()."
    )


def _array(leaf: Any, environment: ModuleEnvironment) -> Any:
    return environment.t2j_iso(leaf) if isinstance(leaf, torch.Tensor) else leaf


@contextlib.contextmanager
def _without_64_bits() -> Iterator[None]:
    """torchax asks for the 64-bit types of torch, which JAX does not have unless told to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype")
        yield


_OF_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Exceptions of JAX where Python looks at a value that only a run will have."""


@contextlib.contextmanager
def _report_place(scopes: Scopes) -> Iterator[None]:
    """Exceptions say in which module and at which line outside libraries they were raised."""
    try:
        yield
    except NeuronError:
        raise
    except OperatorNotFound as error:
        raise UnsupportedProgramError(
            f"{_where(error, scopes)}: {error} in JAX. Write it with other operators, or say so to "
            "the authors of torchax."
        ) from error
    except _OF_VALUES as error:
        raise UnsupportedProgramError(
            f"{_where(error, scopes)}: the program depends on a value that is known only when it "
            "runs (bool(), int(), .item(), .tolist(), or an if on a tensor). Use torch.where, or "
            "pass what decides as a Python number."
        ) from error
    except Exception as error:
        error.add_note(f"Raised in {_where(error, scopes)}, on tensors of torchax.")
        raise


def _where(error: Exception, scopes: Scopes) -> str:
    """The path of the module, and the innermost line outside libraries."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = [Frame(frame.name, frame.filename, frame.lineno or 0) for frame in reversed(stack)]
    source = user_frame(frames)
    return f"{scopes.path} at {shown_line(str(source))}"
