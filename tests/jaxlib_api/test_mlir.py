"""MLIR as jaxlib ships it."""

import jax
import jax.numpy as jnp
import pytest

from neuronjax.jaxlib_api import mlir
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.jaxlib_api.versions import JAXLIB

TEXT = """
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = chlo.tan %x : tensor<2xf32> -> tensor<2xf32>
  return %y : tensor<2xf32>
}
"""


def test_modules_in_contexts_that_may_be_one() -> None:
    """Two at once, one within the other: nobody relies on a fresh one."""
    with mlir.make_context():
        outer = ir.Module.parse(TEXT)
        with mlir.make_context():
            inner = ir.Module.parse(mlir.bytecode(outer))
            again = str(inner)
        assert str(ir.Module.parse(mlir.bytecode(outer))) == again == str(outer)


def test_dialects_that_jax_emits() -> None:
    with mlir.make_context(), ir.Location.unknown():
        for name in ("func.func", "stablehlo.add", "chlo.tan", "mhlo.copy", "sdy.mesh"):
            assert ir.Context.current.is_registered_operation(name), name
        assert ir.RankedTensorType.get([2], ir.F32Type.get()).shape == [2]


@pytest.mark.parametrize("pipeline", ["func.func(chlo-legalize-to-stablehlo)", "symbol-dce,cse"])
def test_passes(pipeline: str) -> None:
    with mlir.make_context():
        module = ir.Module.parse(TEXT)
        manager = mlir.PassManager.parse(f"builtin.module({pipeline})", context=module.context)
        manager.run(module.operation)
        assert module.operation.verify()
        assert ("chlo.tan" in str(module)) == ("chlo" not in pipeline)


def test_portable_artifacts() -> None:
    """What JAX exports, and what the PJRT C API is given, is read as it was written."""
    exported = jax.export.export(jax.jit(jnp.tan))(jax.ShapeDtypeStruct((2,), jnp.float32))
    code = exported.mlir_module_serialized
    assert code.startswith(b"ML\xefR")
    assert b"StableHLO_v" in code[:64]
    with mlir.make_context():
        assert "tensor<2xf32>" in str(mlir.read_portable_artifact(code))


def test_versions_of_stablehlo() -> None:
    newest, oldest = (tuple(map(int, v.split("."))) for v in mlir.stablehlo_versions())
    assert len(newest) == len(oldest) == 3
    assert oldest < newest


def test_what_plugins_are_sent() -> None:
    """The serializer that the client of the C API calls: few operations of CHLO stay, named."""

    def chlo(x: jax.Array) -> tuple[jax.Array, ...]:
        return jax.lax.erf(x), jax.lax.top_k(x, 1)[0], jax.lax.erfc(x)

    x = jnp.ones(2)
    module = jax.jit(chlo).trace(x).lower(lowering_platforms=("neuron",)).compiler_ir("stablehlo")
    assert all(f"chlo.{name}" in str(module) for name in ("erf", "top_k", "erfc"))
    with mlir.make_context():
        sent = str(mlir.read_portable_artifact(mlir.portable_artifact(module)))
    assert all(f'composite "chlo.{name}"' in sent for name in ("erf", "top_k"))
    assert ("chlo.erfc" in sent) == (JAXLIB >= (0, 12))
