"""Of a compile for partitions, XLA does little more than to partition."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from neuronjax.host.client import HostClient


def test_xla_gives_up_before_it_simplifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that writes eigenvalues out comes before the pipelines that simplify."""
    errors: list[str] = []
    compile_partitions = HostClient.compile_partitions

    def watched(*arguments: Any) -> None:
        try:
            compile_partitions(*arguments)
        except Exception as error:
            errors.append(str(error))
            raise

    monkeypatch.setattr(HostClient, "compile_partitions", watched)
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices("neuron")[:2])
    split = NamedSharding(mesh, PartitionSpec("data"))
    values = jax.device_put(jnp.arange(8.0), split)
    assert jax.jit(jnp.sum)(values) == 28.0
    assert errors
    assert all("Unable to parse arguments to Eigh" in error for error in errors)
