"""A compiled program loaded on its cores."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from neuronjax.compiler import CompiledProgram
from neuronjax.errors import (
    ArgumentMismatchError,
    DeletedBufferError,
    SerializationError,
    UnsupportedProgramError,
)
from neuronjax.hlo.layouts import Order
from neuronjax.hlo.module import Argument, Result, Signature, TensorSpec
from neuronjax.host.client import HostExecutable, Placement
from neuronjax.json_records import read_record
from neuronjax.lazy import Lazy
from neuronjax.legalize.checks import Checks
from neuronjax.machine.specs import CoreSpec
from neuronjax.runtime import check_errors
from neuronjax.runtime.memory import HOST_CHECK_BYTES, HbmLedger, protect_host
from neuronjax.runtime.plain_run import PlainRun
from neuronjax.runtime.program_memory import loaded_bytes, program_memory
from neuronjax.runtime.value import ShardedValue, ValueSpec

if TYPE_CHECKING:
    from neuronjax import native_kernels
else:
    native_kernels = Lazy("neuronjax.native_kernels")

_MAGIC = b"NEURONJX"
_FORMAT = 8


class RunObserver(Protocol):
    """An observer that is notified of runs, and of what the host does for them.

    `began` is the time at which the host began with it, in ns of ``time.perf_counter_ns``.
    """

    def ran(self, program: LoadedProgram, outputs: Sequence[Any], began: int) -> None:
        """A run was enqueued; its outputs become ready when it ends."""

    def compiled(self, name: str, began: int) -> None:
        """A program of this name was compiled."""

    def placed(self, array: str, began: int) -> None:
        """An array of this type and shape was copied to a device."""

    def failed(self, program: LoadedProgram, error: BaseException, *, ran: bool) -> None:
        """A run could not be enqueued, or one that `ran` failed a check of its values."""


Execute = Callable[..., tuple[list[ShardedValue], Any]]
"""``LoadedProgram.execute`` of one program."""
Around = Callable[..., tuple[list[ShardedValue], Any]]
"""Wraps ``Execute``: takes the program, its ``Execute``, and the arguments of one call."""


class LoadedProgram:
    """A program loaded on its cores, which maps values to values."""

    def __init__(
        self,
        program: CompiledProgram,
        host: HostExecutable,
        assignment: np.ndarray,
        results: list[ValueSpec],
        ledger: HbmLedger,
        core: CoreSpec,
        observers: Sequence[RunObserver] = (),
        first_run: int = 0,
    ) -> None:
        self.program = program
        self.host = host
        self.assignment = assignment
        self.results = results
        self.placement: Placement = host.placement
        self._ledger = ledger
        self._observers = observers
        self._cores = host.placement.ids
        self.memory = program_memory(program, host)
        self._arguments = len(program.signature.arguments)
        self._result_bytes = sum(spec.hbm_bytes for spec in results)
        self._donated = frozenset(program.signature.donated)
        self._runs = first_run
        transient = self._result_bytes + self.memory.temporaries - self.memory.alias
        self._needed = max(transient, self._result_bytes)
        cores_with_values = len(self._cores) if host.holds_values else 0
        self._transient_on_host = max(transient, 0) * cores_with_values
        self._plain = self._plain_run()
        self.plain = self._plain
        """The short way to run the program; ``None`` if a run needs more than that."""
        self._key: int | None = ledger.load(self._cores, loaded_bytes(program, self.memory, core))

    def execute(
        self, values: list[ShardedValue], kept: frozenset[int], with_token: bool = False
    ) -> tuple[list[ShardedValue], Any]:
        """Enqueues one run on values that lie on the program's placement.

        Donated arguments are consumed, except those whose numbers are in ``kept``. Returns the
        results and, if requested, a token that is ready when the run has ended.

        Raises:
          ArgumentMismatchError, DeletedBufferError: wrong arguments.
          DeviceMemoryError, HostMemoryError: results and temporaries do not fit.
          NumericalError, OutOfBoundsError: a check that the policy requests failed, and the program
            has no results. If it has any, waiting for them raises the error.
        """
        began = time.perf_counter_ns() if self._observers else 0
        if len(values) != self._arguments:
            raise self._mismatch(len(values))
        arrays = [value.array for value in values]
        for array in arrays:
            if array is None:
                raise self._deletion_error(arrays)
        donated = self._donated - kept if kept else self._donated
        if len(donated) != len(self._donated):
            for index in kept & self._donated:
                arrays[index] = self.host.copied(arrays[index], values[index].spec.tensor)
        checks = self.program.checks
        before = None if checks is None else check_errors.before(checks, values)
        self._reserve()
        if self.program.takes_run_number:
            arrays.append(self.host.put(np.array(self._runs, np.uint32)))
            self._runs = (self._runs + 1) % (1 << 32)
        try:
            if self.host.part is not None:
                arrays.append(self.host.put(np.array(self.host.part.begin(), np.uint32)))
            outputs, token = self.host.execute(arrays, with_token)
        except BaseException as failure:
            self._ledger.free(self._cores, self._result_bytes)
            self.tell_failure(failure, ran=False)
            raise
        for observer in self._observers:
            observer.ran(self, outputs, began)
        for index in donated:
            values[index].release()
        ledger = self._ledger
        flags = outputs.pop() if self.program.flagged else None
        results = list(map(ShardedValue, outputs, self.results, repeat(ledger)))
        if before is not None:
            error = before.error or self._failure(flags, before.nan, results)
            if error is not None:
                self.tell_failure(error, ran=True)
                if not results:
                    raise error
                for value in results:
                    value.fail(error)
        return results, token

    def _plain_run(self) -> PlainRun | None:
        """The short way to run a program that has results, runs on one core, donates nothing, has
        no checks and needs little of the host's memory, as small steps are."""
        program, start = self.program, self.host.start
        more = program.checks or program.takes_run_number or self._donated
        if (
            more
            or self._transient_on_host >= HOST_CHECK_BYTES
            or self.host.part is not None
            or start is None
            or len(self._cores) != 1
            or not self.results
        ):
            return None
        return PlainRun(
            self.host, start, self._arguments, self._result_bytes, self._needed, self._ledger,
            self._observers,
        )  # fmt: skip

    def _mismatch(self, given: int) -> ArgumentMismatchError:
        return ArgumentMismatchError(
            f"program {self.program.signature.name!r} takes {self._arguments} arguments, but got "
            f"{given}"
        )

    def _deletion_error(self, arrays: list[Any]) -> DeletedBufferError:
        index = next(index for index, array in enumerate(arrays) if array is None)
        signature = self.program.signature
        name = signature.arguments[index].name
        argument = f"argument {index} ({name})" if name else f"argument {index}"
        return DeletedBufferError(
            f"{argument} of program {signature.name!r} has already been deleted or donated; keep a "
            "copy, or do not donate it."
        )

    def intercept(self, around: Around | None) -> None:
        """Routes calls of ``execute`` through `around`; None restores ``execute``."""
        vars(self).pop("execute", None)
        self.plain = self._plain if around is None else None
        if around is not None:
            vars(self)["execute"] = partial(around, self, self.execute)

    def tell_failure(self, error: BaseException, *, ran: bool) -> None:
        """Tells observers that a run failed."""
        for observer in self._observers:
            observer.failed(self, error, ran=ran)

    def _failure(
        self, flags: Any, nan_before: bool, results: list[ShardedValue]
    ) -> BaseException | None:
        """Waits for the run; returns the error of a check that failed on a core."""
        try:
            flags = [] if flags is None else [shard.tolist() for shard in self.host.shards(flags)]
            return check_errors.failure(self.program, flags, nan_before, results)
        except jax.errors.JaxRuntimeError:  # the run itself failed, and its results say so
            return None

    def _reserve(self) -> None:
        if self._transient_on_host >= HOST_CHECK_BYTES:
            self._ledger.check(self._cores, self._needed)
            protect_host(self._transient_on_host, f"program {self.program.signature.name!r}")
        self._ledger.allocate(self._cores, self._result_bytes, self._needed)

    def unload(self) -> None:
        """Takes the program off its cores; running work is not disturbed."""
        if self._key is not None:
            self._ledger.unload(self._cores, self._key)
            self._key = None


def check_kernels_stay_together(program: CompiledProgram) -> None:
    """UnsupportedProgramError: a program of several processes has an NKI kernel with collectives,
    whose ranks meet within one process."""
    for function in program.callbacks:
        if isinstance(function, native_kernels.NativeKernel) and function.program.ranks > 1:
            raise UnsupportedProgramError(
                f"program {program.signature.name!r} runs the NKI kernel {function.program.name}, "
                "whose collectives are between ranks of several processes; run the program in one "
                "process, or use jax.lax's collectives around the kernel."
            )


def serialize(program: CompiledProgram, host: HostExecutable, options: bytes) -> bytes:
    """Program, host executable and compile options as bytes that ``deserialize`` reads.

    Raises:
      SerializationError: the program calls Python functions other than NKI kernels.
    """
    header = {
        "format": _FORMAT,
        "name": program.signature.name,
        "arguments": [
            [*_spec_to_json(argument.type), argument.donated, argument.layout, argument.name]
            for argument in program.signature.arguments
        ],
        "results": [
            [*_spec_to_json(result.type), result.memory_kind, result.layout, result.name]
            for result in program.signature.results
        ],
        "num_replicas": program.num_replicas,
        "num_partitions": program.num_partitions,
        "xla_options": program.xla_options,
        "fingerprint": program.fingerprint,
        "takes_run_number": program.takes_run_number,
        "mesh": program.signature.mesh,
        "checks": dataclasses.asdict(program.checks) if program.checks else None,
        "kernels": [_kernel_to_json(function) for function in program.callbacks],
    }
    code = b"" if program.callbacks else _code(host)
    parts = (json.dumps(header).encode(), program.per_core, code, options)
    body = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    return _MAGIC + hashlib.sha256(body).digest() + body


def deserialize(data: bytes) -> tuple[CompiledProgram, bytes, bytes]:
    """The program, the host executable's bytes and the compile options in ``data``; a program that
    calls kernels has no bytes and is compiled again.

    Raises:
      SerializationError: the data is something else, damaged, or of another version.
    """
    try:
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("they do not begin with the format's magic number")
        index = len(_MAGIC) + hashlib.sha256().digest_size
        if data[len(_MAGIC) : index] != hashlib.sha256(data[index:]).digest():
            raise ValueError("they are damaged")
        parts = []
        for _ in range(4):
            (size,) = struct.unpack_from("<Q", data, index)
            index += 8
            parts.append(data[index : index + size])
            index += size
        header = json.loads(parts[0])
        if header["format"] != _FORMAT:
            raise ValueError(f"their format is {header['format']}, not {_FORMAT}")
        program = CompiledProgram(
            per_core=parts[1],
            signature=Signature(
                name=header["name"],
                arguments=tuple(
                    Argument(_spec_from_json(entry[:2]), entry[2], _order_from_json(entry[3]), name)
                    for *entry, name in header["arguments"]
                ),
                results=tuple(
                    Result(_spec_from_json(entry[:2]), entry[2], _order_from_json(entry[3]), name)
                    for *entry, name in header["results"]
                ),
                mesh=tuple((axis, size) for axis, size in header["mesh"]),
            ),
            num_replicas=header["num_replicas"],
            num_partitions=header["num_partitions"],
            xla_options=tuple((key, value) for key, value in header["xla_options"]),
            fingerprint=header["fingerprint"],
            takes_run_number=header["takes_run_number"],
            checks=header["checks"] and read_record(Checks, header["checks"]),
            callbacks=tuple(native_kernels.read(entry) for entry in header["kernels"]),
        )
    except Exception as error:  # a header can be wrong in any way
        raise SerializationError(
            f"these bytes are not a serialized neuron executable: {str(error)[:200]}. Compile "
            "the program again (delete the cache entry they came from)."
        ) from None
    return program, parts[2], parts[3]


def _code(host: HostExecutable) -> bytes:
    return host.serialize() if host.part is None else host.part.serialize()


def _kernel_to_json(function: Callable[..., Any]) -> str:
    if not isinstance(function, native_kernels.NativeKernel):
        raise SerializationError(
            "programs with host callbacks cannot be serialized: their Python functions exist only "
            "in this process."
        )
    return function.configuration()


def _spec_to_json(spec: TensorSpec) -> list[Any]:
    return [list(spec.shape), spec.dtype.name]


def _spec_from_json(entry: list[Any]) -> TensorSpec:
    shape, name = entry
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{shape} is not a shape")
    return TensorSpec(tuple(shape), np.dtype(name))


def _order_from_json(entry: list[int] | None) -> Order | None:
    return None if entry is None else tuple(entry)
