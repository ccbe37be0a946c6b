"""What a program of ``torch.distributed`` says about its module: DTensors and hooks of plans.

A module that ``parallelize_module``, ``distribute_module`` or ``fully_shard`` has been applied to,
also in a process group that is ``fake``, is here the program of the whole mesh: its tensors have
their global shapes and the splits of their placements, and the partitioner finds the collectives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from neuronjax.errors import ArgumentMismatchError, ConfigurationError

_PACKAGE = "torch.distributed."


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a DTensor, told without loading ``torch.distributed``."""
    return type(tensor).__module__.startswith(_PACKAGE) and hasattr(tensor, "placements")


def sharding_of(tensor: Any) -> NamedSharding | None:
    """The split of a DTensor over the whole of the mesh that its own is a part of.

    ConfigurationError: dimensions of the mesh have no names, or the tensor is a partial sum.
    """
    if not is_distributed(tensor):
        return None
    part = tensor.device_mesh
    mesh = part._get_root_mesh()
    if mesh.mesh_dim_names is None:
        raise ConfigurationError(
            f"a tensor of shape {list(tensor.shape)} lies on a mesh whose dimensions have no "
            'names; make it with init_device_mesh(…, mesh_dim_names=("data", "model")).'
        )
    split: dict[int, list[str]] = {}
    placed = list(zip(part.mesh_dim_names, tensor.placements, strict=True))
    # What a strided shard splits has been split by the axes behind it before.
    for name, placement in sorted(placed, key=lambda pair: hasattr(pair[1], "split_factor")):
        if placement.is_partial():
            raise ConfigurationError(
                f"a tensor of shape {list(tensor.shape)} is a partial sum over {name}; "
                "redistribute it to Shard or Replicate first."
            )
        if not placement.is_replicate():
            split.setdefault(placement.dim % tensor.dim(), []).append(name)
    entries = [tuple(split[at]) if at in split else None for at in range(tensor.dim())]
    types = (AxisType.Auto,) * mesh.ndim
    axes = AbstractMesh(tuple(mesh.shape), mesh.mesh_dim_names, axis_types=types)
    return NamedSharding(axes, PartitionSpec(*entries))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All values of a tensor, those of a DTensor from all its processes.

    ArgumentMismatchError: the process group has no other processes.
    """
    if not is_distributed(tensor):
        return tensor
    placed: Any = tensor
    groups = placed.device_mesh.get_all_groups()
    if "fake" in map(torch.distributed.get_backend, groups):
        raise ArgumentMismatchError(
            f"a tensor of shape {list(tensor.shape)} is split over a fake process group, so that "
            "nobody has all its values; load them into the module before it is distributed, or "
            "ask for estimates alone."
        )
    gathered: torch.Tensor = placed.full_tensor()
    return gathered


@contextlib.contextmanager
def without_hooks(module: torch.nn.Module) -> Iterator[None]:
    """Leaves out the hooks by which plans move tensors between processes until the block ends."""
    tables = [
        hooks
        for part in module.modules()
        for hooks in (part._forward_pre_hooks, part._forward_hooks)
    ]
    before = [dict(hooks) for hooks in tables]
    try:
        for hooks in tables:
            for key, hook in list(hooks.items()):
                if getattr(hook, "__module__", "").startswith(_PACKAGE):
                    del hooks[key]
        yield
    finally:
        for hooks, kept in zip(tables, before, strict=True):
            hooks.clear()
            hooks.update(kept)
