"""MLIR as jaxlib ships it: the Python bindings, the dialects JAX emits, and bytecode.

``jaxlib.mlir`` is not public, though JAX's own ``jax.interpreters.mlir`` hands out its objects. If
it moves, jaxlib keeps it somewhere: change the imports here.
"""

from __future__ import annotations

from typing import TypeAlias

from jax._src.interpreters import mlir as _jax_mlir
from jaxlib import _jax
from jaxlib.mlir import ir as ir
from jaxlib.mlir.dialects import chlo as chlo
from jaxlib.mlir.dialects import func as func
from jaxlib.mlir.dialects import mhlo, sdy
from jaxlib.mlir.dialects import stablehlo as stablehlo
from jaxlib.mlir.passmanager import PassManager as PassManager

stablehlo.register_stablehlo_passes()

OpOrView: TypeAlias = ir.Operation | ir.OpView
"""An operation, as such or as an object of its kind: walks give the former, values and blocks the
latter."""


def make_context() -> ir.Context:
    """A context that knows every dialect that JAX emits; it may be one that others use, too.

    Those of MLIR itself but ``func`` are loaded when they are first met: ``mlir.make_ir_context``
    loads them all, which takes longer than most of what is done in a context.

    Relies on ``JaxIrContext``, ``upstream_dialects`` and ``global_thread_pool`` of JAX's ``mlir``.
    Without them: ``make_ir_context``.
    """
    context = _jax_mlir.JaxIrContext()
    context.append_dialect_registry(_jax_mlir.upstream_dialects)
    context.set_thread_pool(_jax_mlir.global_thread_pool)
    _ = context.dialects["func"]
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    return context


def bytecode(module: ir.Module) -> bytes:
    """The module as MLIR bytecode.

    Relies on ``mlir.module_to_bytecode``. Without it: ``Operation.write_bytecode``.
    """
    return _jax_mlir.module_to_bytecode(module)


def read_portable_artifact(code: bytes) -> ir.Module:
    """A versioned StableHLO artifact, read in the current context.

    Relies on ``_jax.mlir.deserialize_portable_artifact``. Without it:
    ``stablehlo.deserialize_portable_artifact``.
    """
    return _jax.mlir.deserialize_portable_artifact(code, ir.Context.current)


def portable_artifact(module: ir.Module) -> bytes:
    """The module as JAX sends it to a plugin: CHLO expanded, or in composites.

    Relies on ``_jax.mlir.serialize_portable_artifact``, which the client of the C API calls as
    well. Without it: ``stablehlo.serialize_portable_artifact_str`` after the pass
    ``chlo-legalize-to-stablehlo``.
    """
    newest, _ = stablehlo_versions()
    return _jax.mlir.serialize_portable_artifact(bytecode(module), newest)


def stablehlo_versions() -> tuple[str, str]:
    """The newest and the oldest version of StableHLO artifacts that are read, such as ``1.9.0``."""
    return stablehlo.get_current_version(), stablehlo.get_minimum_version()
