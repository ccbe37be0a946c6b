"""Modules as programs of ``torch.distributed`` split them, in a process group without processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

import neuronjax
from neuronjax.errors import ArgumentMismatchError, ConfigurationError
from neuronjax.torch import specs, to_jax


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def by_plan(module: nn.Module, mesh: DeviceMesh) -> None:
    plan = {"norm": SequenceParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in module.children():
        parallelize_module(block, mesh["model"], plan)


def by_fsdp(module: nn.Module, mesh: DeviceMesh) -> None:
    for block in module.children():
        fully_shard(block, mesh=mesh["data"])
    fully_shard(module, mesh=mesh["data"])


def by_both(module: nn.Module, mesh: DeviceMesh) -> None:
    by_plan(module, mesh)
    by_fsdp(module, mesh)


CASES: dict[str, tuple[Callable[[nn.Module, DeviceMesh], None], dict[str, P]]] = {
    "tensor parallel": (
        by_plan,
        {"up.weight": P("model", None), "down.weight": P(None, "model"), "down.bias": P(None)},
    ),
    "fully sharded": (
        by_fsdp,
        {"up.weight": P("data", None), "down.weight": P("data", None), "down.bias": P("data")},
    ),
    "both": (
        by_both,
        {
            "up.weight": P(("model", "data"), None),
            "down.weight": P("data", "model"),
            "down.bias": P("data"),
        },
    ),
}
"""How a module is distributed, and the splits that its placements mean."""


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", CASES)
def test_placements(name: str, mesh: DeviceMesh, neuron_devices: list[jax.Device]) -> None:
    """On 2×2 cores, split as DTensors are, it computes what PyTorch does on one."""
    distribute, expected = CASES[name]
    plain, module = model(), model()
    x = torch.randn(8, 64)
    values = to_jax(plain, x).state
    distribute(module, mesh)
    program = to_jax(module, x)
    split = specs(program)
    assert {path: split.parameters[f"1.{path}"] for path in expected} == expected

    devices = Mesh(np.array(neuron_devices[:4]).reshape(2, 2), ("data", "model"))
    state = jax.tree.map(
        lambda leaf, spec: jax.device_put(leaf, NamedSharding(devices, spec)), values, split
    )
    rows = jax.device_put(x.numpy(), NamedSharding(devices, P("data")))
    np.testing.assert_allclose(jax.jit(program)(state, rows), plain(x).detach(), atol=1e-5)

    batch = distribute_tensor(torch.empty(8, 64, device="meta"), mesh, [Shard(0), Replicate()])
    estimate = neuronjax.estimate(module, batch)
    assert estimate.ranks == 4
    axes = {axis for traffic in estimate.traffic for axis in traffic.axes.split("+")}
    assert axes
    assert axes <= {"data", "model"}
    with pytest.raises(ArgumentMismatchError, match="split over a fake process group"):
        neuronjax.compare(module, x)


def test_what_placements_cannot_say(mesh: DeviceMesh) -> None:
    module = nn.Linear(64, 64)
    partial = DTensor.from_local(torch.ones(64), mesh["data"], [Partial()])
    module.bias = nn.Parameter(partial, requires_grad=False)
    with pytest.raises(ConfigurationError, match="partial sum over data; redistribute"):
        neuronjax.estimate(module, torch.ones(1, 64))
    nameless = init_device_mesh("cpu", (4,))
    module.bias = nn.Parameter(distribute_tensor(torch.ones(64), nameless, [Shard(0)]))
    with pytest.raises(ConfigurationError, match="no names; make it with init_device_mesh"):
        neuronjax.estimate(module, torch.ones(1, 64))
