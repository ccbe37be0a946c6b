"""Operations that say something to a partitioner, tuples, tokens, and numbers of ranks."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from neuronjax.program.verify import verify
from tests.lower.differential import emulated, host_operations, lowered, lowered_function

X = np.arange(32, dtype=np.float32).reshape(4, 8)


def test_identities() -> None:
    """Shardings and placements leave nothing behind."""
    targets = ("Sharding", "SPMDFullToShardShape", "annotate_device_placement",
               "xla.sdy.FuncResultSharding")  # fmt: skip
    calls = "\n".join(
        f"%{i + 1} = stablehlo.custom_call @{target}(%{i}) : (tensor<4x8xf32>) -> tensor<4x8xf32>"
        for i, target in enumerate(targets)
    )
    code = f"""module @identities {{ func.func @main(%0: tensor<4x8xf32>) -> tensor<4x8xf32> {{
      {calls}
      %sum = stablehlo.add %{len(targets)}, %0 : tensor<4x8xf32>
      return %sum : tensor<4x8xf32> }} }}""".encode()
    program = lowered(code)
    assert host_operations(program) == []
    np.testing.assert_array_equal(emulated(program, code, [[X]])[0][0], X + X)


def test_several_results_of_the_host() -> None:
    """A decomposition returns its results one by one."""
    program, _ = lowered_function(jnp.linalg.qr, X[:, :4])
    assert set(host_operations(program)) == {"custom_call"}
    assert verify(program) == ()


def test_broadcast_of_ranks() -> None:
    """The first rank of each group gives its value to the others."""
    code = b"""module @broadcast { func.func @main(%a: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %0 = "stablehlo.collective_broadcast"(%a)
        {replica_groups = dense<[[1, 0], [2, 3]]> : tensor<2x2xi64>}
        : (tensor<4x8xf32>) -> tensor<4x8xf32>
      return %0 : tensor<4x8xf32> } }"""
    program = lowered(code, ranks=4)
    found = emulated(program, code, [[X + rank] for rank in range(4)])
    assert verify(program) == ()
    for (got,), source in zip(found, (1, 1, 2, 2), strict=True):
        np.testing.assert_array_equal(got, X + source)


def test_numbers_of_ranks() -> None:
    """A rank is a replica; there are no partitions."""
    code = b"""module @ids { func.func @main() -> (tensor<ui32>, tensor<ui32>) {
      %0 = stablehlo.replica_id : tensor<ui32>
      %1 = stablehlo.partition_id : tensor<ui32>
      return %0, %1 : tensor<ui32>, tensor<ui32> } }"""
    found = emulated(lowered(code, ranks=4), code, [[]] * 4)
    assert [[int(each) for each in rank] for rank in found] == [[0, 0], [1, 0], [2, 0], [3, 0]]
