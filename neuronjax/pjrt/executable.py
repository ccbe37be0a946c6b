"""PJRT_Executable and PJRT_LoadedExecutable calls."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from neuronjax.compiler import CompiledProgram
from neuronjax.errors import NeuronError
from neuronjax.hlo.layouts import row_major
from neuronjax.host.client import HostExecutable
from neuronjax.jaxlib_api import compile_options
from neuronjax.jaxlib_api import hlo as xla_hlo
from neuronjax.jaxlib_api.compile_options import write_device_assignment
from neuronjax.pjrt import abi
from neuronjax.pjrt.client_state import ClientState
from neuronjax.pjrt.element_types import code_of
from neuronjax.pjrt.execute import Bystander, Runner
from neuronjax.pjrt.handles import (
    WORDS,
    Strings,
    array_type,
    let_go,
    object_at,
    pointer_array,
    read_bytes,
)
from neuronjax.pjrt.loading import compile_unless_interrupted
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.pjrt.short_run import withdraw
from neuronjax.runtime import executable as runtime_executable
from neuronjax.runtime.analysis import Analysis
from neuronjax.runtime.executable import LoadedProgram
from neuronjax.runtime.program_memory import ProgramMemory


@dataclass
class ExecutableState:
    """A compiled program: what JAX asks of it whether it is loaded or not."""

    plugin: Plugin
    program: CompiledProgram
    host: HostExecutable
    memory: ProgramMemory
    options: bytes
    analysis: Analysis
    simulates: bool
    """Whether analyses are of the device although the host computes values."""
    strings: Strings = field(default_factory=Strings)
    """Names of this program alone: a process that compiles for ever must not keep them."""

    def new_handle(self) -> int:
        """A handle whose record holds what JAX asks at every call, see ``native.py``."""
        program = self.program
        words = (program.num_replicas, program.num_partitions, len(program.signature.result_types))
        return self.plugin.handles.add(self, words)

    @cached_property
    def optimized(self) -> bytes:
        program = self.program
        return xla_hlo.module_with_config(
            program.as_seen(),
            program.num_replicas,
            program.num_partitions,
            tuple(argument.layout for argument in program.signature.arguments),
        )

    @cached_property
    def element_types(self) -> Any:
        results = self.program.signature.result_types
        codes = [code_of(spec.dtype) for spec in results]
        return array_type(ctypes.c_int32, max(1, len(codes)))(*codes)

    @cached_property
    def dimensions(self) -> tuple[Any, Any]:
        """All result dimensions in a row, and the rank of each result."""
        shapes = [spec.shape for spec in self.program.signature.result_types]
        flat = [size for shape in shapes for size in shape]
        ranks = [len(shape) for shape in shapes]
        return (
            array_type(ctypes.c_int64, max(1, len(flat)))(*flat),
            array_type(ctypes.c_size_t, max(1, len(ranks)))(*ranks),
        )

    @cached_property
    def memory_kinds(self) -> tuple[Any, Any]:
        results = self.program.signature.results
        kinds = [result.memory_kind or "device" for result in results]
        texts = [self.plugin.strings(kind) for kind in kinds]
        return (
            pointer_array([address for address, _ in texts]),
            array_type(ctypes.c_size_t, max(1, len(texts)))(*(size for _, size in texts)),
        )

    @cached_property
    def layouts(self) -> Any:
        """The handle of each result's layout."""
        results = self.program.signature.results
        orders = [result.layout or row_major(len(result.type.shape)) for result in results]
        return pointer_array([self.plugin.layout(order) for order in orders])

    @property
    def _is_of_device(self) -> bool:
        return self.simulates or not self.host.runs_on_host

    @cached_property
    def cost(self) -> tuple[Any, int]:
        return self.plugin.named_values(self.analysis.cost(self._is_of_device))

    @cached_property
    def analysed_memory(self) -> ProgramMemory:
        """Memory of the device; of the host's code where the device is not simulated.

        UnsupportedProgramError: what the device needs cannot be estimated.
        """
        if not self._is_of_device:
            return self.memory
        return replace(self.memory, temporaries=self.analysis.temporaries(), code=0)


class LoadedState:
    """A program loaded on a client's devices."""

    def __init__(self, state: ClientState, loaded: LoadedProgram, options: bytes) -> None:
        self.client = state
        self.loaded = loaded
        client = state.client
        machine = client.injector.machine_of(loaded.placement.ids)
        analysis = Analysis(loaded.program, loaded.assignment.size, machine, loaded.host)
        self.executable = ExecutableState(
            state.plugin,
            loaded.program,
            loaded.host,
            loaded.memory,
            options,
            analysis,
            client.options.simulate,
        )
        self.runner: Runner | Bystander | None = (
            Runner(state, loaded) if loaded.placement.ids else Bystander()
        )
        self.plan = self.runner.plan
        """Kept beyond ``delete`` for runs that are under way."""
        self.devices = pointer_array([state.device_handles[i] for i in loaded.placement.ids])
        self.assignment = write_device_assignment(loaded.assignment)

    def delete(self) -> None:
        self.runner = None
        self.loaded.unload()


_EXECUTABLE = abi.word("LoadedExecutable_Execute", "executable")


def LoadedExecutable_Execute(plugin: Plugin, address: int) -> None:
    if plugin.first_run is not None:
        first_run = plugin.first_run
        plugin.first_run = None
        first_run()
    arguments = address >> 3
    _runner(plugin, arguments).run(arguments)


def end_run(plugin: Plugin, address: int) -> None:
    """``LoadedExecutable_Execute`` of a run that machine code has begun; see ``short_run_ir.REST``
    for what is at ``address``."""
    rest = address >> 3
    arguments, outputs = WORDS[rest] >> 3, object_at(WORDS[rest + 1])
    let_go(id(outputs))
    _runner(plugin, arguments).end(arguments, outputs)


def _runner(plugin: Plugin, arguments: int) -> Runner | Bystander:
    handle = WORDS[arguments + _EXECUTABLE]
    loaded = plugin.handles.get(handle) or plugin.handles[handle]
    if loaded.runner is None:
        raise NeuronError("the executable was deleted; compile it again")
    return loaded.runner


def LoadedExecutable_Destroy(plugin: Plugin, args: Any) -> None:
    plugin.loading.taken(args.executable)
    plugin.handles.drop(args.executable).delete()


def LoadedExecutable_Delete(plugin: Plugin, args: Any) -> None:
    loaded = plugin.handles[args.executable]
    withdraw(args.executable)
    loaded.delete()


def LoadedExecutable_IsDeleted(plugin: Plugin, args: Any) -> None:
    args.is_deleted = plugin.handles[args.executable].runner is None


def LoadedExecutable_GetExecutable(plugin: Plugin, args: Any) -> None:
    args.executable = plugin.handles[args.loaded_executable].executable.new_handle()


def LoadedExecutable_AddressableDevices(plugin: Plugin, args: Any) -> None:
    loaded = plugin.handles[args.executable]
    args.addressable_devices = ctypes.addressof(loaded.devices)
    args.num_addressable_devices = len(loaded.loaded.placement)


def LoadedExecutable_GetDeviceAssignment(plugin: Plugin, args: Any) -> None:
    (
        args.serialized_bytes,
        args.serialized_bytes_size,
        args.serialized_device_assignment,
        args.serialized_device_assignment_deleter,
    ) = plugin.lend(plugin.handles[args.executable].assignment)
    plugin.loading.taken(args.executable)


def LoadedExecutable_Fingerprint(plugin: Plugin, args: Any) -> None:
    _give_fingerprint(plugin.handles[args.executable].executable, args)


def Executable_Destroy(plugin: Plugin, args: Any) -> None:
    plugin.handles.drop(args.executable)


def Executable_Name(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.executable]
    args.executable_name, args.executable_name_size = state.strings(state.program.signature.name)


def Executable_SizeOfGeneratedCodeInBytes(plugin: Plugin, args: Any) -> None:
    args.size_in_bytes = plugin.handles[args.executable].memory.code


def Executable_Fingerprint(plugin: Plugin, args: Any) -> None:
    _give_fingerprint(plugin.handles[args.executable], args)


def _give_fingerprint(state: ExecutableState, args: Any) -> None:
    fingerprint = state.strings(state.program.fingerprint)
    args.executable_fingerprint, args.executable_fingerprint_size = fingerprint


def Executable_GetCostAnalysis(plugin: Plugin, args: Any) -> None:
    array, count = plugin.handles[args.executable].cost
    args.properties = ctypes.addressof(array)
    args.num_properties = count


_ON_HOST = tuple(
    f"host_{what}_size_in_bytes"
    for what in ("generated_code", "argument", "output", "alias", "temp")
)


def Executable_GetCompiledMemoryStats(plugin: Plugin, args: Any) -> None:
    memory = plugin.handles[args.executable].analysed_memory
    for name in _ON_HOST:
        setattr(args, name, 0)
    args.generated_code_size_in_bytes = memory.code
    args.argument_size_in_bytes = memory.arguments
    args.output_size_in_bytes = memory.results
    args.alias_size_in_bytes = memory.alias
    args.temp_size_in_bytes = memory.temporaries
    total = memory.arguments + memory.results + memory.temporaries - memory.alias
    args.peak_memory_in_bytes = total
    args.total_size_in_bytes = total


def Executable_OutputElementTypes(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.executable]
    args.output_types = ctypes.addressof(state.element_types)
    args.num_output_types = len(state.program.signature.result_types)


def Executable_OutputDimensions(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.executable]
    args.dims, args.dim_sizes = map(ctypes.addressof, state.dimensions)
    args.num_outputs = len(state.program.signature.result_types)


def Executable_OutputMemoryKinds(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.executable]
    args.memory_kinds, args.memory_kind_sizes = map(ctypes.addressof, state.memory_kinds)
    args.num_outputs = len(state.program.signature.result_types)


def Executable_OptimizedProgram(plugin: Plugin, args: Any) -> None:
    """Called twice: for the size, then with room for the code."""
    program = abi.record("Program").from_address(args.program)
    code = plugin.handles[args.executable].optimized
    program.format, program.format_size = plugin.strings(xla_hlo.MODULE_WITH_CONFIG)
    if program.code:
        ctypes.memmove(program.code, code, len(code))
    program.code_size = len(code)


def Executable_GetCompileOptions(plugin: Plugin, args: Any) -> None:
    (
        args.serialized_bytes,
        args.serialized_bytes_size,
        args.serialized_compile_options,
        args.serialized_compile_options_deleter,
    ) = plugin.lend(plugin.handles[args.executable].options)


def Executable_Serialize(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.executable]
    data = runtime_executable.serialize(state.program, state.host, state.options)
    (
        args.serialized_bytes,
        args.serialized_bytes_size,
        args.serialized_executable,
        args.serialized_executable_deleter,
    ) = plugin.lend(data)


def Executable_DeserializeAndLoad(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.client]
    data = read_bytes(args.serialized_executable, args.serialized_executable_size)
    override = read_bytes(
        args.overridden_serialized_compile_options,
        args.overridden_serialized_compile_options_size,
    )
    with plugin.loading.begun():
        parsed = compile_options.parse(override) if override else None
        loaded = compile_unless_interrupted(state.client.load, data, parsed)
        options = override or runtime_executable.deserialize(data)[2]
        handle = plugin.handles.add(LoadedState(state, loaded, options))
        args.loaded_executable = plugin.loading.compiled(handle)


def ExecuteContext_Create(plugin: Plugin, args: Any) -> None:
    args.context = plugin.handles.add({})


def ExecuteContext_Destroy(plugin: Plugin, args: Any) -> None:
    plugin.handles.drop(args.context)
