"""A client as the C API shows it: the runtime's client and the handles of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from neuronjax import __version__
from neuronjax.hlo.layouts import row_major
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.report import Reporter
from neuronjax.machine.machine import Machine
from neuronjax.pjrt.element_types import code_of
from neuronjax.pjrt.handles import pointer_array
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.pjrt.values import SMALL_BYTES, template
from neuronjax.runtime.client import Client
from neuronjax.runtime.device import MEMORY_KINDS, Attribute, Device, Memory
from neuronjax.runtime.value import MOST_SPECS, ShardedValue, ValueSpec

_SOURCES = Path(__file__).parents[1]


class DeviceDescription:
    """What is known of a device without a client."""

    def __init__(self, plugin: Plugin, device: Device) -> None:
        self.device = device
        self.attributes: dict[str, Attribute] = device.attributes()
        self.attribute_values = plugin.named_values(self.attributes)
        self.debug_string = str(device)


class ClientState:
    """Handles of devices, memories and descriptions, made once per client."""

    def __init__(self, plugin: Plugin, client: Client) -> None:
        self.plugin = plugin
        self.client = client
        client.ledger.settle = plugin.values.collect
        self.device_handles: list[int] = []
        self.description_handles: dict[int, int] = {}
        self.memory_handles: dict[tuple[int, str], int] = {}
        self.memories_of: dict[int, Any] = {}
        self.template = lru_cache(MOST_SPECS)(self._template)
        """The records of a fresh value, by its ``ValueSpec``."""
        for device in client.devices:
            self._add_device(device)
        local = [device.id for device in client.job.local_devices]
        self.devices = pointer_array(self.device_handles)
        self.local_handles = [self.device_handles[id] for id in local]
        self.local_devices = pointer_array(self.local_handles)
        self.memories = pointer_array(list(self.memory_handles.values()))
        self.topology = TopologyState(plugin, client.machine, client.devices, client.policy)
        self.topology_handle = plugin.handles.add(self.topology)

    def _add_device(self, device: Device) -> None:
        handles = self.plugin.handles
        counted = self.is_local(device)
        counts = self.client.ledger.counts_at(device.id) if counted else 0
        self.device_handles.append(handles.add(device, (counts,)))
        if counted and self.plugin.values.bare is not None:
            self.plugin.values.bare.ledgers[self.device_handles[-1]] = self.client.ledger
        self.description_handles[device.id] = handles.add(DeviceDescription(self.plugin, device))
        if not self.is_local(device):
            self.memories_of[device.id] = pointer_array([])
            return
        for memory in device.memories:
            words = self.plugin.strings(memory.kind)
            self.memory_handles[device.id, memory.kind] = handles.add(memory, words)
        self.memories_of[device.id] = pointer_array(
            [self.memory_handles[device.id, kind] for kind in MEMORY_KINDS]
        )

    def is_local(self, device: Device) -> bool:
        """Whether this process has the device."""
        return device.process_index == self.client.job.index

    def _template(self, spec: ValueSpec) -> bytes:
        ids = spec.placement.ids
        return template(
            devices=[self.device_handles[i] for i in ids],
            memories=[self.memory_handles[i, spec.memory_kind] for i in ids],
            dims=self.plugin.numbers(spec.tensor.shape),
            rank=len(spec.tensor.shape),
            element_type=code_of(spec.tensor.dtype),
            layout=self.plugin.layout(spec.layout or row_major(len(spec.tensor.shape))),
            small=spec.shard_bytes <= SMALL_BYTES,
            hbm_bytes=spec.hbm_bytes,
        )

    def add_value(self, value: ShardedValue) -> int:
        """A handle (of shard 0) for a new value."""
        self.plugin.values.collect()
        return self.plugin.values.add(value, self.template(value.spec))

    def destroy(self) -> None:
        """Ends every handle of the client's parts."""
        self.plugin.values.collect()
        if self.plugin.values.bare is not None:
            for handle in self.device_handles:
                self.plugin.values.bare.ledgers.pop(handle, None)
        drop = self.plugin.handles.drop
        for handle in (
            *self.device_handles,
            *self.description_handles.values(),
            *self.memory_handles.values(),
        ):
            drop(handle)
        self.topology.destroy()
        drop(self.topology_handle)


class TopologyState:
    """A machine's devices for compiling ahead of time, with or without a client."""

    def __init__(
        self, plugin: Plugin, machine: Machine, devices: Sequence[Device], policy: Policy
    ) -> None:
        self.plugin = plugin
        self.machine = machine
        self.policy = policy
        self.reporter = Reporter()
        self.devices = list(devices)
        self.handles = [plugin.handles.add(DeviceDescription(plugin, d)) for d in self.devices]
        self.descriptions = pointer_array(self.handles)
        self.attributes = plugin.named_values({"target": machine.target, "lnc": machine.lnc})

    def destroy(self) -> None:
        for handle in self.handles:
            self.plugin.handles.drop(handle)


@cache
def platform_version(machine: Machine, policy: Policy) -> str:
    """What JAX puts into the keys of its compilation cache beside the program: all that decides
    what a program is compiled to."""
    setting = f"{machine.target} lnc={machine.lnc} {policy.digest()}"
    return f"neuronjax {__version__} {setting} {sources_digest(_SOURCES)}"


def sources_digest(folder: Path) -> str:
    """Tells apart the states of a folder of Python files that somebody edits: by their names, sizes
    and times of change."""
    files = ((file, file.stat()) for file in sorted(folder.rglob("*.py")))
    states = [(str(file), state.st_size, state.st_mtime_ns) for file, state in files]
    return sha256(repr(states).encode()).hexdigest()[:16]


def memory_at(state: ClientState, device: int | None, memory: int | None) -> Memory:
    """The memory a call names, or the default memory of the device it names."""
    handles = state.plugin.handles
    if memory:
        return handles[memory]
    return handles[device].memories[0]
