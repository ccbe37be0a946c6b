"""What a compiled program takes of a core's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuronjax.compiler import CompiledProgram
from neuronjax.host.client import HostExecutable
from neuronjax.lazy import Lazy
from neuronjax.machine.device_memory import COLLECTIVES, RINGS, Demand, runtime_memory
from neuronjax.machine.specs import CoreSpec
from neuronjax.runtime.memory import LoadedBytes

if TYPE_CHECKING:
    from neuronjax import native_kernels
else:
    native_kernels = Lazy("neuronjax.native_kernels")


@dataclass(frozen=True)
class ProgramMemory:
    """Bytes per core."""

    arguments: int
    results: int
    alias: int
    temporaries: int
    code: int


def program_memory(program: CompiledProgram, host: HostExecutable) -> ProgramMemory:
    """Bytes per core of a compiled program. XLA knows nothing of what kernels need for themselves;
    they run one after the other."""
    signature, stats = program.signature, host.memory()
    kernels = (
        function.scratch_bytes
        for function in program.callbacks
        if host.runs_on_host and isinstance(function, native_kernels.NativeKernel)
    )
    return ProgramMemory(
        arguments=sum(spec.nbytes for spec in signature.argument_types),
        results=sum(spec.nbytes for spec in signature.result_types),
        alias=int(stats.alias_size_in_bytes),
        temporaries=int(stats.temp_size_in_bytes) + max(kernels, default=0),
        code=host.code_bytes(),
    )


def loaded_bytes(program: CompiledProgram, memory: ProgramMemory, core: CoreSpec) -> LoadedBytes:
    """What the program takes on each of its cores while it is loaded; with several cores, it is
    taken to have collectives."""
    demand = Demand(
        io_bytes=memory.arguments + memory.results - memory.alias,
        spilled_bytes=memory.temporaries,
        has_collectives=program.num_devices > 1,
    )
    taken = {kind: share.nbytes for kind, share in runtime_memory(core, demand).items()}
    return LoadedBytes(
        program.signature.name,
        memory.code,
        memory.temporaries,
        rings=taken.get(RINGS, 0),
        collectives=taken.get(COLLECTIVES, 0),
    )
