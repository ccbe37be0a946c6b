"""A PyTorch module with example inputs as a function of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from neuronjax.errors import ArgumentMismatchError, ConfigurationError
from neuronjax.lazy import Lazy
from neuronjax.torch import library, quantized
from neuronjax.torch.signature import named
from neuronjax.torch.state import State

if TYPE_CHECKING:
    import torch

    from neuronjax.torch import calls, sites, values
else:
    calls, sites, values = (
        Lazy(f"neuronjax.torch.{name}") for name in ("calls", "sites", "values")
    )


@dataclass(frozen=True, eq=False)
class Program:
    """A module's ``forward`` as a pure function of its `State` and its inputs.

    Inputs and results are trees of arrays. Outputs and caches of transformers keep their types, and
    are trees as well. The mode is the one in which the module is: ``module.train()`` or ``eval()``.
    """

    module: torch.nn.Module
    example: Mapping[str, Any]
    """Arguments of ``forward`` by name, as trees of ``jax.ShapeDtypeStruct`` and of what is no
    tensor. The latter stands for arguments that a call leaves out."""

    @property
    def __name__(self) -> str:
        """The module's class: what JAX calls the program."""
        return type(self.module).__name__

    @functools.cached_property
    def state(self) -> State:
        """The module's tensors as arrays; of tensors on ``meta``, ``jax.ShapeDtypeStruct``."""
        return sites.state_of(self.module, values.array)

    @functools.cached_property
    def types(self) -> State:
        """The types of `state`, without a copy of a tensor."""
        return sites.state_of(self.module, values.type_of)

    def arrays(self, tree: Any) -> Any:
        """A tree with its tensors as arrays, such as a cache of transformers to pass on."""
        leaves, structure = values.flatten(tree)
        return structure.unflatten([values.array(leaf) for leaf in leaves])

    def __call__(
        self, state: State, *inputs: Any, key: jax.Array | None = None, **keywords: Any
    ) -> Any:
        """Calls ``forward``. What it writes to buffers is lost; `update` returns that too.

        `key` is for dropout and other random numbers; a module that draws some needs it.
        """
        return self.update(state, *inputs, key=key, **keywords)[0]

    def update(
        self, state: State, *inputs: Any, key: jax.Array | None = None, **keywords: Any
    ) -> tuple[Any, State]:
        """Calls ``forward``, and returns its result and the state with the buffers it leaves.

        Raises:
          UnsupportedProgramError: an operator has no counterpart in JAX, or the program depends on
            values; says in which module and at which line.
          ConfigurationError: random numbers without a key.
          ArgumentMismatchError: inputs are missing, or ``forward`` cannot take their shapes.
        """
        static = {name: part for name, part in self.example.items() if not _holds_types(part)}
        given = named(self.module, inputs, keywords)
        try:
            return calls.call(self.module, state, {**static, **given}, key)
        except (TypeError, ValueError) as error:
            if differing := values.differences(given, self.example):
                raise ArgumentMismatchError(
                    f"{type(self.module).__name__} cannot take {differing}: {error}."
                ) from error
            raise


def to_jax(module: Callable[..., object], *example: Any, **keywords: Any) -> Program:
    """A module as a function of JAX; `Program` says how it is called.

    Args:
      module: any ``torch.nn.Module``, in the mode in which it is to run. Its parameters may lie on
        ``meta``, which costs no memory, if only estimates are wanted.
      example, keywords: arguments of its ``forward``: tensors (on ``meta`` if only their types
        matter), arrays, ``jax.ShapeDtypeStruct``, trees of these, and anything else.

    Example::

        program = neuronjax.torch.to_jax(model, input_ids=ids, use_cache=False)
        logits = jax.jit(program)(program.state, input_ids=ids.numpy()).logits

    ConfigurationError: torch or torchax is missing or has an untested version, `module` is not a
    module, or its weights are packed for the kernels of a library for quantization.
    ArgumentMismatchError: a tensor lies on a device that is not here, or has a type that JAX lacks.
    """
    library.load()
    if not is_module(module):
        raise ConfigurationError(
            f"to_jax takes a torch.nn.Module, not {type(module).__name__}; write a module whose "
            "forward does what you want."
        )
    quantized.check(module)
    given = named(module, example, keywords)
    return Program(module, {name: values.types(part) for name, part in given.items()})


class Converted(NamedTuple):
    """A function of JAX with its arguments, and what these are."""

    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    kinds: dict[str, str]
    """Kinds of arguments by path, as `estimate` takes them."""


def as_jax(fn: Any, arguments: Sequence[Any], with_values: bool = False) -> Converted:
    """A function that JAX can trace: `fn` itself, unless it is a module or a `Program`.

    A module's function takes the state and a dict of inputs. `arguments` are the example inputs,
    for a `Program` none if it is called as in its example. Arrays and not their types are returned
    `with_values`; arguments on ``meta`` have none.
    """
    if is_module(fn):
        library.load()
        quantized.check(fn)
        fn = Program(fn, named(fn, arguments, {}))
    elif isinstance(fn, Program):
        given = named(fn.module, arguments, {}) if arguments else {}
        fn = Program(fn.module, {**fn.example, **given})
    else:
        return Converted(fn, tuple(arguments), {})
    leaves, tree = values.flatten(fn.example)
    is_static = [not values.is_array(leaf) for leaf in leaves]
    convert = values.array if with_values else values.type_of

    def forward(state: State, inputs: dict[str, Any]) -> Any:
        given = zip(values.flatten(inputs)[0], leaves, is_static, strict=True)
        whole = tree.unflatten([leaf if static else value for value, leaf, static in given])
        key = jax.random.key(0, impl="rbg")  # which the compiler has an instruction for
        result, after = calls.call(fn.module, state, whole, key)
        return (result, after) if fn.module.training else result

    forward.__name__ = type(fn.module).__name__
    inputs = tree.unflatten(
        [None if static else convert(leaf) for leaf, static in zip(leaves, is_static, strict=True)]
    )
    state = fn.state if with_values else fn.types
    return Converted(forward, (state, inputs), _kinds(fn.module, fn.types))


def as_program(made: Any) -> Program | None:
    """A program, or a module with the inputs of its call as ``torch.export`` takes them: a tuple, a
    dict of keywords, or both. ``None`` if `made` is something else.

    A tuple or a dict that stands alone behind a module holds its inputs, and is not one of them.
    """
    if isinstance(made, Program):
        return made
    if not isinstance(made, tuple) or not made or not is_module(made[0]):
        return None
    match made[1:]:
        case (tuple() as inputs,):
            return to_jax(made[0], *inputs)
        case (Mapping() as keywords,):
            return to_jax(made[0], **keywords)
        case (tuple() as inputs, Mapping() as keywords):
            return to_jax(made[0], *inputs, **keywords)
    return None


def is_module(value: object) -> bool:
    """Whether it is a ``torch.nn.Module``, told without loading torch."""
    return any(
        (base.__module__, base.__qualname__) == ("torch.nn.modules.module", "Module")
        for base in type(value).__mro__
    )


def _holds_types(part: Any) -> bool:
    return any(map(values.is_array, values.flatten(part)[0]))


def _kinds(module: torch.nn.Module, state: State) -> dict[str, str]:
    """Names the kinds of the parts of the state in the words of `planning.argument_kinds`."""
    known = {"state.parameters": "weights"} if state.parameters else {}
    parameters = {site.path for site in sites.sites_of(module) if site.is_parameter}
    frozen = {f"state.buffers[{path!r}]": "weights" for path in state.buffers if path in parameters}
    return {**known, **({"state.buffers": "statistics"} if state.buffers else {}), **frozen}
