"""Graphs as text that people read, and what is wrong with their form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuronjax.hlo.graph import AttributeValue, Graph, Op, Value

_LONGEST = 8
"""Numbers of a constant that are shown."""


def printed(graph: Graph) -> str:
    """An operation a line, with its attributes, types and the user's line; regions indented."""
    return "\n".join(_lines(graph, {}, "")) + "\n"


def _lines(graph: Graph, names: dict[Value, str], indent: str) -> Iterator[str]:
    def name(value: Value) -> str:
        return names.setdefault(value, f"%{len(names)}")

    given = ", ".join(f"{name(value)}: {_type(value)}" for value in graph.parameters)
    yield f"{indent}({given}) {{"
    for op in graph.operations:
        left = ", ".join(map(name, op.results))
        right = ", ".join(map(name, op.operands))
        types = ", ".join(map(_type, op.results))
        source = f"  // {op.source}" if op.source else ""
        equals = f"{left} = " if left else ""
        yield f"{indent}  {equals}{op.name}({right}){_attributes(op)} : {types}{source}"
        for region in op.regions:
            yield from _lines(region, names, indent + "    ")
    yield f"{indent}  return {', '.join(map(name, graph.results))}"
    yield f"{indent}}}"


def _attributes(op: Op) -> str:
    shown = ", ".join(f"{key}={_shown(value)}" for key, value in op.attributes.items())
    return f" {{{shown}}}" if shown else ""


def _shown(value: AttributeValue) -> str:
    if not isinstance(value, np.ndarray):
        return str(value)
    if 0 in value.strides and value.size:
        return f"{value.flat[0]} everywhere"
    more = ", ..." if value.size > _LONGEST else ""
    return f"[{', '.join(map(str, value.flat[:_LONGEST]))}{more}]"


def _type(value: Value) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def malformed(graph: Graph) -> list[str]:
    """Operations that use values which nothing before them makes, and values made twice."""
    return list(_malformed(graph, set()))


def _malformed(graph: Graph, around: set[Value]) -> Iterator[str]:
    known = around | set(graph.parameters)
    for op in graph.operations:
        where = f"{op.name} at {op.source}" if op.source else op.name
        for value in op.operands:
            if value not in known:
                yield f"{where} uses a {_type(value)} that nothing before it makes"
        for region in op.regions:
            yield from _malformed(region, known)
        for value in op.results:
            if value in known:
                yield f"{where} makes a {_type(value)} that was made before"
            if value.producer is not None and value.producer is not op:
                yield f"{where} makes a {_type(value)} whose producer is {value.producer.name}"
        known.update(op.results)
    for value in graph.results:
        if value not in known:
            yield f"a result, a {_type(value)}, that nothing makes"
