"""The subject of an estimate: a function, the shapes of its arguments, and the work of a call."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, SimpleNamespace
from typing import Any

import jax
from jax.sharding import AbstractMesh

from neuronjax.errors import (
    ConfigurationError,
    NeuronError,
    ScriptError,
    TopologyError,
    WorkloadError,
    did_you_mean,
    shortened,
    shown_line,
)
from neuronjax.planning.splits import in_one_line
from neuronjax.torch import as_jax, as_program, exported

PROTOCOL = """\
module:function makes the workload. It is called with those of these keywords that it accepts and
that were given:

  mesh     jax.sharding.AbstractMesh of --mesh: for NamedSharding, jit's shardings, shard_map
  batch    int of --batch
  dtype    str of --dtype, such as bfloat16
  layers   int: how many layers to build. With it, a deep model is compiled at two small depths
           and its numbers are extrapolated; without it, the program is compiled as it is
  pad      True with --pad: heads, vocabulary and the like are to be rounded up to sizes that the
           mesh divides, as NxD and Megatron do
  any other, from --set NAME=VALUE

torch:FILE.py:FUNCTION names a function of a file, which may return a module of PyTorch with example
inputs: (module, *inputs), or (module, inputs, keywords) as torch.export takes them, a tuple and a
dict of which either can be left out; or a program of neuronjax.torch.to_jax. FILE.pt2 is a program
that torch.export saved.

The function returns a dict (or a tuple (fn, *arguments)):

  fn         the function; jitted if it donates arguments or has shardings
  arguments  its positional arguments: trees of jax.ShapeDtypeStruct, with sharding= where they are
             split. Nothing is allocated
  tokens, samples   what one call processes (or produces), over all cores; optional
  model_flops  what MFU counts, over all cores: for a decoder that is trained, 6 for each weight and
             token and those of attention, without what is computed again or by several cores.
             Optional: all products of the program, otherwise
  kinds      what arguments are, by name or by the path of a part, such as {"params": "weights",
             "state.cache": "cache"}: weights, optimizer, cache, statistics, inputs or state.
             Optional: variables of NNX and states of optax are known by their types, caches and
             other state by being donated
  programs   how many programs like this one are loaded beside each other, such as buckets of
             lengths, for the memory that the runtime needs for them; optional: 1
  assumed    lines to print with the estimate, such as what was padded; optional
  layers     how many the whole model has, if the function takes layers
"""
"""How commands are told what to estimate."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One call of `fn`. `tokens`, `samples` and `model_flops` count over all cores."""

    fn: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    tokens: int | None = None
    samples: int | None = None
    model_flops: float | None = None
    """What MFU counts; None: the products of the program."""
    name: str | None = None
    assumed: Sequence[str] = ()
    """What the estimate is to mention, such as sizes that were padded."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """What arguments are, where their structure does not say it, by path."""
    programs: int = 1
    """Programs like this one that are loaded beside each other."""

    @property
    def argument_bytes(self) -> int:
        """The bytes of all arguments, over all cores."""
        leaves = jax.tree.leaves(self.arguments)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if hasattr(leaf, "dtype"))


@dataclass(frozen=True, kw_only=True)
class Factory:
    """What makes a workload: `make` of the keywords that it `takes`, at `depth` layers if it has
    any."""

    make: Callable[..., Any]
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_loaded: bool = False
    """Whether `load` makes it of its name, as another process does then."""

    def __reduce__(self) -> tuple[Callable[..., Factory], tuple[Any, ...]]:
        if self.is_loaded:
            return load, (self.name, dict(self.settings))
        return functools.partial(
            Factory, make=self.make, name=self.name, settings=self.settings
        ), ()

    @property
    def has_layers(self) -> bool:
        """Whether it can be built shallower than it is."""
        return self.takes("layers")

    def takes(self, keyword: str) -> bool:
        """Whether the workload depends on a keyword."""
        return keyword in _parameters(self.make)

    def build(self, layers: int | None = None, **given: Any) -> tuple[Workload, int | None]:
        """The workload, and the layers of the whole model if it says so.

        `given` are the keywords that any workload may take; `settings` must all be taken.

        ConfigurationError: it takes no such setting, or returns something else.
        """
        names = _parameters(self.make)
        unknown = sorted(set(self.settings) - names)
        if unknown:
            raise ConfigurationError(
                f"{self.name} has no parameter {', '.join(unknown)}; its parameters are "
                f"{', '.join(sorted(names))}."
            )
        if given.get("pad") and "pad" not in names:
            raise ConfigurationError(
                f"{self.name} cannot pad: it has no parameter pad. Round its sizes up yourself, or "
                "leave out --pad."
            )
        known = {**given, "layers": layers}
        chosen = {key: value for key, value in known.items() if key in names and value is not None}
        with reported(self.name, self.make, given.get("mesh")):
            made = self.make(**{**chosen, **self.settings})
        return _read(made, self.name)


def _parameters(make: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(make).parameters)


def _read(made: Any, name: str) -> tuple[Workload, int | None]:
    if isinstance(made, Workload):
        return made, None
    if (program := as_program(made)) is not None:
        return _workload(name, fn=program), None
    if isinstance(made, tuple) and made and callable(made[0]):
        return _workload(name, fn=made[0], arguments=made[1:]), None
    known = {
        "fn", "arguments", "tokens", "samples", "model_flops", "kinds", "programs", "assumed",
        "layers",
    }  # fmt: skip
    if isinstance(made, Mapping) and "fn" in made and set(made) <= known:
        fields = {key: value for key, value in made.items() if key != "layers"}
        return _workload(name, **fields), made.get("layers")
    returned = sorted(made) if isinstance(made, Mapping) else type(made).__name__
    raise ConfigurationError(
        f"{name} returned {returned}; return a dict with fn, arguments and, optionally, tokens, "
        "samples, model_flops, kinds, programs and layers, or a tuple (fn, *arguments)."
    )


def _workload(
    name: str,
    fn: Callable[..., Any],
    arguments: Sequence[Any] = (),
    kinds: Mapping[str, str] | None = None,
    **others: Any,
) -> Workload:
    """A workload of a function of JAX, or of a module of PyTorch with example inputs."""
    fn, arguments, known = as_jax(fn, arguments)
    return Workload(
        fn=fn, arguments=arguments, name=name, kinds={**known, **(kinds or {})}, **others
    )


_OF_FILE = "torch:"


def load(spec: str, settings: Mapping[str, Any] | None = None) -> Factory:
    """The factory `module:function`; the folder one is in counts as a place of modules.

    ``torch:FILE.py:FUNCTION`` names a function of a file, and a ``.pt2`` file of ``torch.export``
    is a workload by itself.

    ScriptError: there is no such module, file or function.
    """
    if spec.endswith(exported.SUFFIX):
        return Factory(make=functools.partial(exported.load, spec), name=spec, is_loaded=True)
    module_name, colon, function = spec.removeprefix(_OF_FILE).rpartition(":")
    if not colon or not function:
        raise ScriptError(f"{spec!r} does not name a function; write module:function.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        if spec.startswith(_OF_FILE):
            module: Any = SimpleNamespace(**runpy.run_path(module_name))
        else:
            module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and _is_part(error.name, module_name):
            raise ScriptError(
                f"there is no module {module_name!r}; check which folder you are in."
            ) from None
        raise ScriptError(
            f"module {module_name} cannot be imported: {_reason(error)}{_at(error)}."
        ) from error
    make = getattr(module, function, None)
    if not callable(make):
        functions = [name for name, value in vars(module).items() if callable(value)]
        raise ScriptError(
            f"module {module_name} has no function {function!r}.{did_you_mean(function, functions)}"
        )
    return Factory(make=make, name=spec, settings=dict(settings or {}), is_loaded=True)


def _is_part(name: str | None, module: str) -> bool:
    """Whether it is a module that was asked for, or a package around it."""
    return name is not None and (name == module or module.startswith(f"{name}."))


@contextlib.contextmanager
def reported(name: str, function: Callable[..., Any], mesh: AbstractMesh | None) -> Iterator[None]:
    """What the user's function raises becomes one line, with the last line of its own file.

    WorkloadError: an exception of the function or of JAX. TopologyError: the mesh does not divide
    an argument.
    """
    try:
        yield
    except TopologyError as error:
        text = str(error).removesuffix(".")
        raise TopologyError(f"{name}: {text}{_at(error, function)}.") from error
    except NeuronError:
        raise
    except Exception as error:
        raise WorkloadError(
            f"{name} failed with these arguments: {_reason(error, mesh)}{_at(error, function)}."
        ) from error


def _at(error: Exception, function: Callable[..., Any] | None = None) -> str:
    """The last line of a function's own file, or where it begins; or the last of all."""
    if isinstance(error, SyntaxError):
        return ""
    code = _code_of(function)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    if not own and code is not None:
        return f" (at {shown_line(f'{code.co_filename}:{code.co_firstlineno}')})"
    frame = (own or frames)[-1]
    return f" (at {shown_line(f'{frame.filename}:{frame.lineno}')})"


def _code_of(function: Callable[..., Any] | None) -> CodeType | None:
    """The code of a function, or of what is called in its place; None: it is not Python's."""
    while isinstance(function, functools.partial):
        function = function.func
    return None if function is None else getattr(inspect.unwrap(function), "__code__", None)


_LONGEST_REASON = 500
"""Characters of another's message."""
_NO_AXIS = re.compile(r"Resource axis: (\w+) of .* is not found in mesh")


def _reason(error: Exception, mesh: AbstractMesh | None = None) -> str:
    """Returns the message of an exception; for an axis that the mesh lacks, how to name it."""
    missing = _NO_AXIS.match(str(error))
    if mesh is None or missing is None:
        said = shortened(in_one_line(str(error)), _LONGEST_REASON).rstrip(".")
        return f"{type(error).__name__}: {said}" if said else type(error).__name__
    return (
        f"it splits arrays over the axis {missing[1]!r}, and the mesh has the axes "
        f"{', '.join(mesh.shape)}. Name the axes that it uses, such as "
        f"--mesh={missing[1]}={mesh.size}"
    )
