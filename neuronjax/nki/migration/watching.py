"""What the expressions of a kernel of NKI 0.x are, seen while it is traced.

The file runs with a call about each expression, which notes whether its value is an index, a mask,
a tile or a tensor of blocks, and of which shape, element type and memory.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuronjax.nki.legacy.blocks import Blocks
from neuronjax.nki.legacy.index import Index, Mask
from neuronjax.nki.legacy.walks import Walk

Place = tuple[int, int, int, int]
"""Where an expression begins and ends: lines and columns."""

_NOTE = "__neuronjax_note__"


@dataclass(frozen=True)
class Seen:
    """What an expression was every time: `kind` is "index", "mask", "tile", "blocks" or ""."""

    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    memory: str = ""
    #: Of an index, its steps along the axes that it walks over.
    factors: tuple[int, ...] = ()


OTHER = Seen("")


@dataclass
class Watch:
    """What was seen, by place."""

    seen: dict[Place, Seen] = field(default_factory=dict)

    def __call__(self, place: Place, value: Any) -> Any:
        """Notes the value of an expression, and returns it."""
        now = _seen(value)
        known = self.seen.setdefault(place, now)
        if known != now and known.kind == now.kind == "tile":  # masked ones are smaller at the end
            shape = tuple(map(max, known.shape, now.shape)) if known.shape and now.shape else ()
            self.seen[place] = Seen("tile", shape, known.dtype, known.memory)
        return value

    def saw(self, function: ast.FunctionDef) -> bool:
        """Whether a function was run."""
        lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        return any(line in lines for line, *_ in self.seen)

    def ran(self, statement: ast.stmt) -> bool:
        """Whether a statement was run, or has nothing of which that is known."""
        places = [place_of(node) for node in ast.walk(statement) if isinstance(node, ast.Call)]
        return not places or any(place in self.seen for place in places)

    def of(self, node: ast.AST) -> Seen:
        """What an expression was when the kernel ran."""
        return self.seen.get(place_of(node), OTHER)


def place_of(node: Any) -> Place:
    """The lines and columns of a node of the syntax tree."""
    return (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


def _seen(value: object) -> Seen:
    if isinstance(value, Index):
        return Seen("index", value.shape, factors=value.factors)
    if isinstance(value, Mask):
        return Seen("mask")
    if isinstance(value, Walk):
        return Seen("tile", value.shape, value.dtype.name, value.buffer.value)
    if isinstance(value, Blocks):
        return Seen("blocks", value.shape, value.dtype.name, value.buffer.value)
    return OTHER


class _Watched(ast.NodeTransformer):
    """Puts a call about expressions of functions."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        is_read = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        kinds = (ast.Name, ast.Subscript, ast.Call, ast.BinOp, ast.Attribute, ast.Compare)
        if not isinstance(node, kinds) or not is_read:
            return node
        place = ast.Tuple([ast.Constant(part) for part in place_of(node)], ast.Load())
        call = ast.Call(ast.Name(_NOTE, ast.Load()), [place, node], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def watched(
    source: str,
    file: str,
    kernel: str,
    arguments: Sequence[object],
    values: Mapping[str, object],
    target: str | None,
) -> tuple[Any, Watch]:
    """A kernel of a file, and what the expressions of that are while it is traced for arguments.
    Raises what the file and the kernel raise."""
    tree, watch = ast.parse(source, file), Watch()
    watcher = _Watched()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            watcher.visit(node)
    module: dict[str, Any] = {"__name__": "watched_kernel", "__file__": file, _NOTE: watch}
    exec(compile(tree, file, "exec"), module)  # the user's own file
    watched_kernel = module[kernel]
    watched_kernel.trace(*arguments, target=target, **values)
    own: dict[str, Any] = {"__name__": "kernel", "__file__": file}
    exec(compile(source, file, "exec"), own)
    return own[kernel], watch
