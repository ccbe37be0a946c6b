"""The place in the user's source that an op comes from.

JAX records with every op the Python frames that made it, innermost first, without JAX's own; those
of libraries on top of JAX are included. The user's line is the innermost frame outside libraries.
"""

from __future__ import annotations

import itertools
import re
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from neuronjax.jaxlib_api.mlir import OpOrView, ir

LIBRARIES = frozenset({
    "jax", "jaxlib", "flax", "optax", "orbax", "chex", "haiku", "equinox", "diffrax", "optimistix",
    "lineax", "jaxopt", "distrax", "rlax", "numpyro", "brax", "penzai", "grain", "clu", "absl",
    "jax_neuronx", "libneuronxla", "neuronxcc", "nki", "torch", "torchax", "torchvision", "keras",
    "einops", "opt_einsum", "transformers", "diffusers", "timm", "accelerate", "peft",
})  # fmt: skip
"""Packages between the user and XLA, whose lines the user cannot change."""

MODEL_FILES = re.compile(r"(?:transformers|diffusers|timm|torchvision|keras_hub)[/\\]models[/\\]")
"""Files of `LIBRARIES` that are models: people read and change their lines."""

UNKNOWN = "unknown source"

_STRING = r'"((?:[^"\\]|\\.)*)"'
_FRAME = re.compile(rf"(?:{_STRING}\()?{_STRING}:(\d+):\d+")
_VALUE_NAME = re.compile(rf"loc\({_STRING}[()]")
_NAME = re.compile(r'loc\("(?:[^"/]*:"\(")?((?:[^"\\]|\\.)*)"')
_TRANSFORMED = re.compile(r"(\w+)\((.*)\)")
_MODULE_SCOPE = "module({})"
_IN_MODULE = re.compile(r"\bmodule\(")
_MODULE = re.compile(r"(?:.*\.)?(\w+)\.__call__(?:\..*)?")
_BRANCH = re.compile(r"branch_\d+_fun")
_FUNCTIONS = frozenset({
    "jit", "pjit", "pmap", "shard_map", "closed_call", "core_call", "checkpoint", "remat",
    "rematted_computation", "custom_jvp_call", "custom_vjp_call", "while", "body", "cond", "scan",
})  # fmt: skip
"""Parts of an op's name that JAX itself adds for functions and control flow."""
FORWARD, BACKWARD, RECOMPUTED = PHASES = ("forward", "backward", "recomputed")
"""What a gradient consists of; the last in which an op lies is its own."""
_IN_PHASE = re.compile(r"(.*) \((\w+)\)")
_ESCAPE = re.compile(rb"\\(\\|[0-9A-F]{2})")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w+)")
_PACKAGE = Path(__file__).parents[1]
_EXAMPLES = str(_PACKAGE / "workloads.py")
_OWN = (str(_PACKAGE), sysconfig.get_path("stdlib"), "<frozen ")


@dataclass(frozen=True)
class Frame:
    """A line of a function."""

    function: str
    """Qualified name, such as ``Model.__call__.<locals>.body``; empty if not recorded."""
    file: str
    line: int

    @property
    def is_library(self) -> bool:
        """Whether it belongs to JAX, a library on top of it, or Python."""
        package = _package(self)
        if package:
            return package in LIBRARIES and not MODEL_FILES.search(self.file)
        return self.file.startswith(_OWN) and self.file != _EXAMPLES

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def _package(frame: Frame) -> str:
    """The installed package that a frame belongs to; empty if it belongs to none."""
    installed = _INSTALLED.search(frame.file)
    return installed[1] if installed else ""


class Origin(NamedTuple):
    """The origin of an op: `source_line`, `scope` and `layer`, and the phase of a gradient."""

    source: str
    scope: str
    layer: str
    phase: str

    def within(self, call: Origin) -> Origin:
        """The origin of an op in a function called there: JAX's own functions may have no lines."""
        phase = max(self.phase, call.phase, key=PHASES.index)
        if self.source != UNKNOWN:
            return self._replace(phase=phase)
        return Origin(call.source, self.scope, call.layer, phase)


NOWHERE = Origin(UNKNOWN, "", "", FORWARD)


def origin(op: OpOrView, program: str) -> Origin:
    """Returns the origin of an op of a program."""
    return _origin(str(op.location), program)


@lru_cache(maxsize=1 << 13)
def _origin(location: str, program: str) -> Origin:
    name, stack = _name_in(location), _frames_in(location)
    source = str(user_frame(stack) or UNKNOWN)
    return Origin(source, _scopes(name), _layer(name, stack, program), _phase(name))


def frames(op: OpOrView) -> tuple[Frame, ...]:
    """The frames recorded with an op, innermost first."""
    return _frames_in(str(op.location))


def _frames_in(location: str) -> tuple[Frame, ...]:
    return tuple(
        Frame(match[1] or "", _unescaped(match[2]), int(match[3]))
        for match in _FRAME.finditer(location)
    )


def _unescaped(text: str) -> str:
    """Undoes MLIR's escapes: doubled backslashes, and non-ASCII bytes in hexadecimal digits."""

    def plain(match: re.Match[bytes]) -> bytes:
        return b"\\" if match[1] == b"\\" else bytes.fromhex(match[1].decode())

    if "\\" not in text:
        return text
    return _ESCAPE.sub(plain, text.encode()).decode(errors="replace")


def user_frame(stack: Iterable[Frame]) -> Frame | None:
    """The innermost frame outside libraries, or else the innermost; ``None`` without frames."""
    innermost: Frame | None = None
    for frame in stack:
        if not frame.is_library:
            return frame
        innermost = innermost or frame
    return innermost


def scope(op: OpOrView) -> str:
    """The user's name scopes around an op, such as ``decoder/block_3/attention``; empty if none.

    JAX names an op by its path through functions, control flow, transformations and scopes; the
    last part is the primitive. In a called function, the path begins there.
    """
    return _scopes(_name(op))


def module_scope(name: str) -> str:
    """The name of the scope of a module that names itself, such as ``layers.3``.

    In such a module, what a library calls its functions is no scope.
    """
    return _MODULE_SCOPE.format(name)


def _scopes(name: str) -> str:
    parts = name.split("/")[:-1]
    of_modules = [part for part in parts if _IN_MODULE.search(part)]
    return "/".join(filter(None, map(_scope, of_modules or parts)))


def layer(op: OpOrView, program: str) -> str:
    """The modules that were being called when an op was traced, such as ``Decoder/Block/Linear``.

    They are the classes whose ``__call__`` is on the stack, outermost first: NNX modules name no
    scopes. Outside modules they are the user's functions, and ``optax`` for what it computes. The
    jitted function and what called it are left out; empty if nothing is left. `program` is that
    function's name, for ops whose path begins in a function that it calls.
    """
    return _layer(_name(op), frames(op), program)


def _layer(name: str, frames: tuple[Frame, ...], program: str) -> str:
    stack = [*frames]
    called = [frame.function.rpartition(".")[2] for frame in stack]
    path = _TRANSFORMED.fullmatch(name.split("/")[0])
    jitted = path[2] if path else program
    is_traced = path is None or jitted in called  # else JAX jitted a function of its own
    if jitted in called:
        stack = stack[: called.index(jitted)]
    stack = _of_this_call(stack)[::-1]
    names = [match[1] for frame in stack if (match := _MODULE.fullmatch(frame.function))]
    if is_traced and not names:
        names = [*filter(None, map(_function, stack))]
    return "/".join(name for name, _ in itertools.groupby(names))


def _of_this_call(stack: list[Frame]) -> list[Frame]:
    """A stack, innermost first, without the callers that a shared function was first traced for.

    JAX traces a function once for all its calls. An op of it has all frames of the first call, and
    then those of its own.
    """
    repeated = [number for number, frame in enumerate(stack) if frame in stack[number + 1 :]]
    if not repeated:
        return stack
    first, own = stack[: repeated[-1] + 1], stack[repeated[-1] + 1 :]
    return _of_this_call([*first[: first.index(own[0])], *own]) if own[0] in first else stack


def _function(frame: Frame) -> str:
    """Returns the name of a frame outside modules in a path of layers; empty if it is left out."""
    if frame.is_library:
        return "optax" if _package(frame) == "optax" else ""
    name = frame.function.rpartition(".")[2]
    return "" if name.startswith("<") else name


def inlined(op: OpOrView, call: OpOrView) -> ir.Location:
    """The location of an op of a called function where it takes the place of the call."""
    name = "/".join(filter(None, (_name(call), _name(op))))
    frames_of_both = ir.Location.callsite(op.location, [call.location])
    return ir.Location.name(name, frames_of_both) if name else frames_of_both


def name_of_value(value: ir.BlockArgument) -> str:
    """JAX's name of an argument of a function; empty without one."""
    name = _VALUE_NAME.match(str(value.location))
    return _unescaped(name[1]) if name else ""


def _name(op: OpOrView) -> str:
    """JAX's name of an op; empty without one."""
    return _name_in(str(op.location))


def _name_in(location: str) -> str:
    name = _NAME.match(location)
    return _unescaped(name[1]) if name else ""


def _scope(part: str) -> str:
    """A part of an op's name without transformations; empty if it is not a scope."""
    inner = _TRANSFORMED.fullmatch(part)
    if inner:
        return "" if inner[1] in _FUNCTIONS else _scope(inner[2])
    is_einsum = "->" in part
    return "" if part in _FUNCTIONS or is_einsum or _BRANCH.fullmatch(part) else part


def _phase(name: str) -> str:
    """JAX names what a gradient adds ``transpose(…)``, and what is recomputed by its function."""
    parts = name.split("/")
    if "rematted_computation" in parts:
        return RECOMPUTED
    return BACKWARD if any(part.startswith("transpose(") for part in parts) else FORWARD


def in_phase(scope: str, phase: str) -> str:
    """A scope with its phase, such as ``mlp (backward)``; without one, the phase is left out."""
    return f"{scope} ({phase})" if scope and phase != FORWARD else scope


def split_phase(scope: str) -> tuple[str, str]:
    """The scope and the phase of which `in_phase` made one."""
    match = _IN_PHASE.fullmatch(scope)
    return (match[1], match[2]) if match and match[2] in PHASES else (scope, FORWARD)


def common_scope(scopes: Iterable[str]) -> str:
    """The innermost scope that encloses all non-empty ones, in their phase if they share it."""
    pairs = [split_phase(scope) for scope in scopes if scope]
    paths = [path.split("/") for path, _ in pairs]
    shared = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    phases = {phase for _, phase in pairs}
    phase = phases.pop() if len(phases) == 1 else FORWARD
    return in_phase("/".join(names[0] for names in shared), phase)


def source_line(op: OpOrView) -> str:
    """``file:line`` of the user's line recorded with an op, or ``unknown source``."""
    return str(user_frame(frames(op)) or UNKNOWN)
