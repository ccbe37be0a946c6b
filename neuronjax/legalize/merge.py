"""Merges functions of jax.numpy into a module: traces, lowers, parses and inserts them.

A module under compilation lives in its own MLIR context, and its compilation may have been
triggered anywhere in the user's program: inside a mesh, with 64-bit types on or off, under strict
promotion. Tracing is isolated from all of that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import jax

from neuronjax.hlo import module as hlo
from neuronjax.hlo.module import TensorSpec
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.jaxlib_api.tracing import without_source_lines
from neuronjax.legalize.call import Function

_EMPTY_MESH = jax.sharding.AbstractMesh((), ())


def lower(function: Function, operands: Sequence[TensorSpec]) -> bytes:
    """``function`` of arrays of those types as StableHLO bytecode; its entry is ``main``.

    Its ops carry names but no source lines: the user's line is that of the call.
    """
    arguments = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in operands]
    with _as_written():
        traced = jax.jit(function, keep_unused=True).trace(*arguments)
        return hlo.dump(traced.lower(lowering_platforms=("cpu",)).compiler_ir())


@contextlib.contextmanager
def _as_written() -> Iterator[None]:
    """A context with JAX's defaults in place of the user's settings, and 64-bit types as given."""
    with (
        jax.sharding.use_abstract_mesh(_EMPTY_MESH),
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.default_matmul_precision("highest"),
        without_source_lines(),
    ):
        yield


def insert(module: ir.Module, code: bytes, name: str) -> ir.OpView:
    """Puts the functions of ``code`` into ``module`` as private ones; returns its ``main`` there.

    ``main`` is called ``name``, and every other function by a name made of that and its own; a
    number is added where a name is taken. Needs the context of ``module`` as the current one.
    """
    added = hlo.load(code)
    taken = {_symbol(op) for op in module.body.operations if "sym_name" in op.attributes}
    renamed = {}
    for function in added.body.operations:
        old = _symbol(function)
        renamed[old] = _free(name if old == "main" else f"{name}.{old}", taken)
        taken.add(renamed[old])
    for old, new in renamed.items():
        ir.SymbolTable.replace_all_symbol_uses(old, new, added.operation)
    inserted = {}
    for function in added.body.operations:
        copy = function.operation.clone(ir.InsertionPoint(module.body))
        copy.attributes["sym_name"] = ir.StringAttr.get(renamed[_symbol(function)])
        copy.attributes["sym_visibility"] = ir.StringAttr.get("private")
        inserted[_symbol(function)] = copy
    return inserted["main"]


def call(function: ir.OpView, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Results of a call of ``function`` (of ``insert``) at the current insertion point."""
    results = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    callee = ir.FlatSymbolRefAttr.get(_symbol(function))
    op = ir.Operation.create(
        "func.call", results=results, operands=operands, attributes={"callee": callee}
    )
    return list(op.results)


def _symbol(op: ir.OpView) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value


def _free(name: str, taken: set[str]) -> str:
    number, free = 0, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
