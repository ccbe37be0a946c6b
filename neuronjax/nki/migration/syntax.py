"""What Python's syntax trees say of calls, indices and names."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping


def indices_of(node: ast.Subscript) -> list[ast.expr]:
    """The indices of a subscript."""
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def name_called(node: ast.AST) -> str:
    """The last name of what is called, or of a name itself."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def owner_called(call: ast.Call) -> str:
    """`sbuf` of `ncc.sbuf.mod_alloc(…)`."""
    return name_called(call.func.value) if isinstance(call.func, ast.Attribute) else "sbuf"


def expanded(node: ast.expr, names: Mapping[str, ast.expr]) -> ast.expr:
    """An expression with what names stand for in their place."""
    names = dict(names)

    class Expanded(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return names.get(name.id, name)

    made: ast.expr = Expanded().visit(copy.deepcopy(node))
    return made


def inner(size: ast.expr) -> ast.expr:
    """The size within `par_dim`, or the size itself."""
    return size.args[0] if isinstance(size, ast.Call) and name_called(size) == "par_dim" else size


def argument(call: ast.expr, place: int, name: str) -> ast.expr:
    """An argument by its place or its name."""
    assert isinstance(call, ast.Call)
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[place]


def is_none(node: ast.expr) -> bool:
    """Whether it is None."""
    return isinstance(node, ast.Constant) and node.value is None
