"""The private XLA:CPU client on which values live and programs run, apart from JAX's own.

Every logical core is one of its devices. A value on N cores is one array of that client with N
shards; JAX calls it replicated although the shards differ, because nothing here ever looks at the
global value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import jax
import numpy as np

from neuronjax.errors import CompileError, UnsupportedProgramError
from neuronjax.hlo import module as hlo
from neuronjax.hlo.custom_calls import custom_calls
from neuronjax.hlo.location import source_line
from neuronjax.hlo.module import TensorSpec
from neuronjax.host.callbacks import Failures, passed_on
from neuronjax.host.folding import keep_convolutions
from neuronjax.host.in_flight import InFlight
from neuronjax.jaxlib_api import compile_options, cpu_client, xla_errors
from neuronjax.jaxlib_api.cpu_client import Executable
from neuronjax.options import settings_of_xla

_STUCK_SECONDS = 600
"""Many emulated cores on few host cores are slow, not stuck; XLA's default of 40 s would abort."""
_COLLECTIVES = 4
"""Collectives that a device may have under way at once: those that do not depend on each other."""
_TIMEOUT = f"--xla_cpu_collective_call_terminate_timeout_seconds={_STUCK_SECONDS}"
"""XLA:CPU has it from the flags of the process alone, not from those of a program."""
_ALL_PASSES = {"xla_disable_all_hlo_passes": False, "xla_enable_hlo_passes_only": ""}
"""Without its passes XLA ends the process, on the ``cpu`` platform too."""
_DISABLED = "xla_disable_hlo_passes"
_MEETINGS = (b"all_", b"reduce_scatter", b"collective_")
"""What the names of collectives begin with."""
_BARRIER = b"optimization_barrier"
_KEEPS_BARRIERS = ("cse_barrier_expander", "small-while-loop-hoisting")
"""Passes of XLA:CPU that are left out of programs with optimization barriers.

The first one removes them before it last eliminates common subexpressions, which would merge what a
backward pass computes again (``jax.checkpoint``) with what the forward pass computed, and keep that
in memory from one to the other. The second one moves small loops to an emitter that does not know
barriers and ends the process."""


@dataclass(frozen=True, eq=False)
class Placement:
    """An ordered set of logical cores as the private client sees it; one object per set."""

    ids: tuple[int, ...]
    devices: tuple[Any, ...]

    @cached_property
    def device_list(self) -> Any:
        return cpu_client.device_list(self.devices)

    @cached_property
    def sharding(self) -> Any:
        if len(self.devices) == 1:
            return jax.sharding.SingleDeviceSharding(self.devices[0])
        mesh = jax.sharding.Mesh(np.array(self.devices, dtype=object), ("core",))
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def __len__(self) -> int:
        return len(self.ids)


def _aval(spec: TensorSpec) -> Any:
    dtype = np.dtype(np.bool_) if spec.dtype == hlo.TOKEN else spec.dtype
    return cpu_client.aval(spec.shape, dtype)


def _copy(array: Any, spec: TensorSpec, placement: Placement) -> Any:
    return cpu_client.copy(array, placement.device_list, placement.sharding)


def _put(value: np.ndarray, placement: Placement) -> Any:
    return cpu_client.put(value, placement.sharding, placement.devices)


class PartOfProgram(Protocol):
    """What other processes have to do with the runs of a program."""

    def begin(self) -> int:
        """The run's number, which the program takes as its last argument, uint32."""

    def serialize(self) -> bytes:
        """What is stored in place of the executable."""


class HostExecutable:
    """A per-core program loaded on a placement."""

    holds_values = True
    """Whether results and temporaries take memory of this machine."""
    runs_on_host = True
    """Whether cost and memory are those of code for this machine."""
    part: PartOfProgram | None = None
    """Set if other processes run the program with this one."""
    start: Callable[[list[Any]], cpu_client.Results] | None = None
    """Enqueues a run on one core; with ``handlers`` the results become arrays, as by ``run``."""
    handlers: Sequence[Callable[[Any], Any]] = ()

    def __init__(
        self,
        loaded: Executable,
        placement: Placement,
        results: Sequence[TensorSpec],
        in_flight: InFlight,
        then: Executable | None = None,
    ) -> None:
        """`then` runs behind the program, and passes its results on."""
        self.placement = placement
        self._then = then
        several = len(placement) > 1
        self._in_flight = in_flight if several else None
        self._enqueuing = in_flight.enqueuing if several else contextlib.nullcontext()
        self._loaded = loaded
        self.handlers = [
            cpu_client.result_handler(_aval(spec), placement.sharding) for spec in results
        ]
        self._execute = loaded.execute_sharded
        if not several:
            self.start = self._execute

    def execute(self, arguments: list[Any], with_token: bool = False) -> tuple[list[Any], Any]:
        """Enqueues one run; arrays in, arrays out, one shard per core each.

        With ``with_token`` also a token that is ready when the run has ended, else ``None``.
        """
        if not with_token and self._in_flight is None:
            return self._execute(arguments).consume_with_handlers(self.handlers), None
        with self._enqueuing:
            results = self._execute(arguments, with_tokens=True)
            if self._then is not None:
                made = results.consume_with_handlers(self.handlers)
                results = self._then.execute_sharded(made, with_tokens=True)
        token = results.consume_token()
        if self._in_flight is not None:
            self._in_flight.add(token)
        return results.consume_with_handlers(self.handlers), token if with_token else None

    def copied(self, array: Any, spec: TensorSpec) -> Any:
        """A copy of an argument, for the program to take over in its place."""
        return _copy(array, spec, self.placement)

    def put(self, value: np.ndarray) -> Any:
        """A host array copied to every core, as an argument."""
        return _put(value, self.placement)

    def shards(self, array: Any) -> list[np.ndarray]:
        """A result's values on every core; waits for them."""
        shards = [array] if len(self.placement) == 1 else cpu_client.shards(array)
        return [np.asarray(shard) for shard in shards]

    def memory(self) -> Any:
        """XLA's compiled memory statistics, in bytes per core."""
        return self._loaded.get_compiled_memory_stats()

    def code_bytes(self) -> int:
        return self._loaded.size_of_generated_code_in_bytes()

    def serialize(self) -> bytes:
        return self._loaded.serialize()


class HostClient:
    """A private XLA:CPU client with one device per logical core.

    A client that `runs` programs has threads for the collectives that a device may have under way:
    each waits on a thread for the other devices. With one thread per device, which is what XLA
    has, a device that waits in one collective can take the thread that lets another one begin what
    all wait for.
    """

    def __init__(self, num_devices: int, *, runs: bool = False) -> None:
        several = runs and num_devices > 1
        settings = settings_of_xla(_COLLECTIVES * num_devices, _TIMEOUT)
        with settings if several else contextlib.nullcontext():
            self._client = cpu_client.create(num_devices)
        self._devices = tuple(self._client.devices())
        self._placements: dict[tuple[int, ...], Placement] = {}
        self._in_flight = InFlight()

    def __len__(self) -> int:
        return len(self._devices)

    def placement(self, ids: Sequence[int]) -> Placement:
        """The one ``Placement`` of these local core ids."""
        key = tuple(ids)
        known = self._placements.get(key)
        if known is None:
            placement = Placement(key, tuple(self._devices[i] for i in key))
            known = self._placements.setdefault(key, placement)
        return known

    def put(self, value: np.ndarray, placement: Placement) -> Any:
        """Copies a host array to every core of ``placement``; returns the array there."""
        return _put(value, placement)

    def assemble(self, spec: TensorSpec, placement: Placement, shards: list[Any]) -> Any:
        """An array made of single-core arrays, in the order of ``placement``."""
        return cpu_client.assemble(_aval(spec), placement.sharding, shards)

    def copy(self, shard: Any, spec: TensorSpec, placement: Placement) -> Any:
        """A copy of a single-core array on the single core of ``placement``."""
        return _copy(shard, spec, placement)

    def compile(
        self,
        module: bytes,
        placement: Placement,
        results: Sequence[TensorSpec],
        options: dict[str, Any],
        callbacks: Sequence[Callable[..., Any]],
    ) -> HostExecutable:
        """Compiles a per-core program to run as one replica per core of ``placement``.

        Raises:
          CompileError: XLA refused the program; UnsupportedProgramError: XLA:CPU lacks an op of it.
        """
        replicas = np.array(placement.ids).reshape(len(placement), 1)
        chosen = _compile_options(replicas, options, _KEEPS_BARRIERS if _BARRIER in module else ())
        target = placement.device_list
        compile_and_load = self._client.compile_and_load
        with translated_errors(module), hlo.context():
            parsed = hlo.load(module)
            hlo.forget_shardings(parsed)
            keep_convolutions(parsed)
            then: Executable | None = None
            if callbacks and len(placement) > 1 and any(name in module for name in _MEETINGS):
                failures = Failures(len(placement))
                callbacks = failures.kept(callbacks, parsed)
                end = passed_on(parsed, len(placement))
                then = compile_and_load(end, target, chosen, [failures.raise_first])
            functions = [list(callbacks)] if callbacks else []
            loaded = compile_and_load(parsed, target, chosen, *functions)
        return HostExecutable(loaded, placement, results, self._in_flight, then)

    def compile_partitions(
        self,
        module: bytes,
        devices: int,
        results: int,
        template: Any,
        options: dict[str, Any],
    ) -> None:
        """Compiles a global program for ``devices`` partitions, for its dumps alone.

        ``template`` is the caller's CompileOptions: sharding propagation and partitioner are his.
        The module has one more result than the caller's program of ``results``.
        """
        partitions = np.arange(devices).reshape(1, devices)
        chosen = _compile_options(partitions, options)
        build = chosen.executable_build_options
        build.use_spmd_partitioning = True
        build.use_shardy_partitioner = template.executable_build_options.use_shardy_partitioner
        to_parameters, to_results = compile_options.shardings_propagated(template)
        compile_options.propagate_shardings(
            chosen, to_parameters, [*_per_result(to_results, results), False]
        )
        device_list = self.placement(range(devices)).device_list
        with translated_errors():
            self._client.compile_and_load(module, device_list, chosen)

    def deserialize(
        self, data: bytes, placement: Placement, results: Sequence[TensorSpec]
    ) -> HostExecutable:
        """Loads what ``HostExecutable.serialize`` returned."""
        replicas = np.array(placement.ids).reshape(len(placement), 1)
        with translated_errors():
            loaded = self._client.deserialize_executable(
                data, placement.device_list, _compile_options(replicas, {})
            )
        return HostExecutable(loaded, placement, results, self._in_flight)


def _per_result(flags: Sequence[bool], count: int) -> list[bool]:
    """XLA takes one flag for all results or one for each."""
    return list(flags) * count if len(flags) == 1 else list(flags)


def _compile_options(
    assignment: np.ndarray, options: dict[str, Any], disabled: Sequence[str] = ()
) -> Any:
    """CompileOptions for a (replicas, partitions) table of private device ids.

    ``disabled`` are passes that XLA leaves out, beside those of the options or of ``XLA_FLAGS``.
    """
    chosen = compile_options.new()
    compile_options.assign(chosen, assignment)
    left_out = options.get(_DISABLED, compile_options.disabled_passes(chosen))
    passes = {_DISABLED: ",".join(filter(None, (left_out, *disabled)))}
    chosen.env_option_overrides = list((options | _ALL_PASSES | passes).items())
    return chosen


class translated_errors:
    """Turns XLA's compile errors into the project's, keeping XLA's words.

    A custom call that XLA does not know is looked up in ``module``, the bytecode it compiled.
    """

    def __init__(self, module: bytes | None = None) -> None:
        self._module = module

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            text = str(error)
            target = xla_errors.unknown_custom_call(text)
            if self._module is not None and target is not None:
                _refuse_custom_call(target, self._module)
            unsupported = xla_errors.is_unimplemented(text)
            cause = UnsupportedProgramError if unsupported else CompileError
            raise cause(text) from None


def _refuse_custom_call(target: str, module: bytes) -> None:
    """Raises ``UnsupportedProgramError`` with the source of the call, if the program has it."""
    with hlo.context():
        lines = [source_line(op) for op in custom_calls(hlo.load(module), target.__eq__)]
    if lines:
        raise UnsupportedProgramError(
            f"custom call {target} at {lines[0]} is unknown to the Neuron compiler, and XLA on the "
            "CPU, which computes values here, has no implementation of it; write it in JAX, or "
            "register one with jax.ffi.register_ffi_target for platform cpu."
        ) from None
