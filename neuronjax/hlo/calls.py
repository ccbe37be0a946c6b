"""The call graph of a module: the ops that ``main`` reaches, along which paths, from which lines.

JAX keeps functions that are traced once and used often as private functions, and records only the
inner frames of their ops. Facts that depend on the caller (arguments that are constants, the user's
line) therefore need the calls that lead to an op: its call path, innermost call first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from neuronjax.hlo.location import Frame, frames, user_frame
from neuronjax.hlo.module import main_function
from neuronjax.jaxlib_api.mlir import OpOrView, ir

Path = tuple[OpOrView, ...]
"""The ``func.call`` ops from an op's function up to ``main``, innermost first."""

MAX_PATHS = 64
"""How many call paths of a function are considered at most."""

_MADE_BY_JAX = frozenset({
    "closedcall", "corecall", "checkpoint", "remat", "none", "shmapbody", "customjvpcall",
    "customvjpcall", "wrapped", "wrapper", "jitfn", "main",
})  # fmt: skip
"""Names, as normalised by ``_plain``, that JAX gives to the user's functions."""


def _plain(name: str) -> str:
    """A name in lower case, without punctuation and the number that makes it unique."""
    return re.sub(r"[\W_]", "", re.sub(r"_\d+$", "", name)).lower()


class CallGraph:
    """The call graph from ``main``. It refers to ops: use it while the module is unchanged."""

    def __init__(self, module: ir.Module) -> None:
        self.operations: list[tuple[ir.Operation, str]] = []
        """Every op that ``main`` reaches, in program order, with the name of its function."""
        self.functions = {
            ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self.main = ir.StringAttr(main_function(module).operation.attributes["sym_name"]).value
        self._calls: dict[str, list[tuple[ir.Operation, str]]] = {self.main: []}
        self._ways: dict[str, list[Path]] = {}
        self._collect()
        self._user_code: dict[str, bool] = {}

    def _collect(self) -> None:
        waiting = [self.main]
        while waiting:
            name = waiting.pop(0)
            for op in _inside(self.functions[name]):
                self.operations.append((op, name))
                if op.name != "func.call":
                    continue
                callee = callee_of(op)
                if callee not in self._calls:
                    self._calls[callee] = []
                    waiting.append(callee)
                self._calls[callee].append((op, name))

    def paths(self, function: str) -> list[Path]:
        """The call paths from ``main`` to a function, at most ``MAX_PATHS``."""
        if function not in self._ways:
            ways = itertools.islice(self._find_paths(function), MAX_PATHS)
            self._ways[function] = list(ways)
        return self._ways[function]

    def calls_of(self, function: OpOrView) -> list[ir.Operation]:
        """The ``func.call`` ops that call a function; none call ``main``."""
        name = ir.StringAttr(function.attributes["sym_name"]).value
        return [call for call, _ in self._calls.get(name, ())]

    def _find_paths(self, function: str) -> Iterator[Path]:
        if function == self.main:
            yield ()
        for call, caller in self._calls[function]:
            for rest in self._find_paths(caller):
                yield (call, *rest)

    def source(self, op: OpOrView, path: Path) -> Frame | None:
        """The user's line of an op that is reached along ``path``.

        Inside JAX's own functions it is the line that called the outermost of them, since such
        functions are traced once and the inner frames may be those of another caller. A constant
        belongs to the line that uses it, wherever it has been moved.
        """
        if op.name == "stablehlo.constant":
            op = next((use.owner for use in op.results[0].uses), op)
        levels = [op, *path]
        while len(levels) > 1 and not self.is_library(levels[-1]):
            levels.pop()
        for level in [levels[-1], *path[len(levels) - 1 :]]:
            frame = user_frame(frames(level))
            if frame is not None:
                return frame
        return _source_nearby(op)

    def is_library(self, call: OpOrView) -> bool:
        """Whether an op calls a function made from JAX's own code."""
        callee = callee_of(call)
        if "." in callee:  # a name that XLA gave: it has calls of JAX inlined already
            return False
        return _plain(callee) not in _MADE_BY_JAX and not self._has_user_code(callee)

    def _has_user_code(self, function: str) -> bool:
        if function not in self._user_code:
            self._user_code[function] = self._names_a_frame(function)
        return self._user_code[function]

    def _names_a_frame(self, function: str) -> bool:
        """Whether some op in the function was made by a Python function of its name."""
        plain = _plain(function)
        return any(
            _plain(frame.function.rpartition(".")[2]) == plain
            for op in _inside(self.functions[function])
            for frame in frames(op)
        )

    def origin(self, value: ir.Value, path: Path) -> tuple[ir.Value, Path]:
        """The op that makes a value, through calls, arguments and loop-invariant values."""
        while True:
            step = self._step(value, path)
            if step is None:
                return value, path
            value, path = step

    def _step(self, value: ir.Value, path: Path) -> tuple[ir.Value, Path] | None:
        if isinstance(value, ir.BlockArgument):
            return _into_argument(value, path)
        op = value.owner
        if op.name == "func.call":
            returned = terminator(self.functions[callee_of(op)]).operands
            return returned[_result_number(value)], (op, *path)
        number = _result_number(value)
        looped = op.name == "stablehlo.while" and is_carried_unchanged(op, number)
        if looped or op.name in _TRANSPARENT:
            return op.operands[number], path
        return None


_TRANSPARENT = frozenset({"stablehlo.optimization_barrier", "mhlo.copy"})


def _inside(function: OpOrView) -> list[ir.Operation]:
    """All ops in the body of a function, outer before inner."""
    ops: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        ops.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit, ir.WalkOrder.PRE_ORDER)
    return ops[1:]


def callee_of(call: OpOrView) -> str:
    """Name of the function that a ``func.call`` calls."""
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def terminator(op: OpOrView, region: int = 0) -> ir.Operation:
    """The op that ends a single-block region of ``op``."""
    operations = op.regions[region].blocks[0].operations
    return operations[len(operations) - 1].operation


def _result_number(value: ir.Value) -> int:
    return ir.OpResult(value).result_number


def _into_argument(value: ir.BlockArgument, path: Path) -> tuple[ir.Value, Path] | None:
    parent = value.owner.owner.operation
    if parent.name == "func.func":
        return (path[0].operands[value.arg_number], path[1:]) if path else None
    if parent.name == "stablehlo.while" and is_carried_unchanged(parent, value.arg_number):
        return parent.operands[value.arg_number], path
    return None


def is_carried_unchanged(loop: OpOrView, number: int) -> bool:
    """Whether the body of a ``stablehlo.while`` returns its argument ``number`` unchanged."""
    return terminator(loop, 1).operands[number] == loop.regions[1].blocks[0].arguments[number]


def _source_nearby(op: OpOrView) -> Frame | None:
    """The line of an op near one without a line, such as one that a partitioner added."""
    seen, waiting = 0, [op]
    while waiting and seen < MAX_PATHS:
        seen += 1
        current = waiting.pop(0)
        frame = user_frame(frames(current))
        if frame is not None:
            return frame
        waiting += [value.owner for value in current.operands if isinstance(value, ir.OpResult)]
        waiting += [use.owner for result in current.results for use in result.uses]
        parent = current.parent
        if parent is not None and parent.name not in ("func.func", "builtin.module"):
            waiting.append(parent)
    return None
