"""The executor ``engine``: values come from the emulator, instruction by instruction.

Values stay on the private client, as with the executor ``host``. A run reads their bytes, runs all
cores of the program, and puts the results back; it ends before ``execute`` returns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from neuronjax.emulate.checks import NO_CHECKS, Checks
from neuronjax.emulate.core import (
    Arguments,
    DataflowOrder,
    Emulation,
    Executed,
    Order,
    ProgramOrder,
    Results,
)
from neuronjax.emulate.element_types import Rounding
from neuronjax.emulate.record import record
from neuronjax.emulate.repeated import Repeated
from neuronjax.engine_compiler import lower_program
from neuronjax.errors import ConfigurationError, ExecutionError
from neuronjax.hlo import module as hlo
from neuronjax.hlo.module import TensorSpec
from neuronjax.host.client import HostClient, HostExecutable, Placement
from neuronjax.legalize.policy import policy_of
from neuronjax.lower.memory.account import account
from neuronjax.lower.values.storage import restored, stored
from neuronjax.options import Options
from neuronjax.program.control import Host
from neuronjax.program.operand import Kind
from neuronjax.program.program import Program, Target
from neuronjax.program.user_lines import lines_by_path, with_lines
from neuronjax.rounding import NUMPY, Mode, random_bits


@dataclass(frozen=True)
class EngineMemory:
    """Memory statistics of a program, in bytes of HBM per core."""

    temp_size_in_bytes: int
    alias_size_in_bytes: int = 0


Disturb = Callable[[Emulation, Executed], None]
"""A function that is called after every instruction of a run."""


class EngineExecutable(HostExecutable):
    """A per-core program as engine instructions."""

    runs_on_host = False

    def __init__(
        self,
        program: Program,
        module: bytes,
        placement: Placement,
        results: Sequence[TensorSpec],
        host: HostWork,
        runs: Runs,
    ) -> None:
        self.program = program
        self.placement = placement
        self._module = module
        self._results = results
        self._host = host
        self._runs = runs
        self._run = runs.of(program, host)
        self._disturb: Disturb | None = None

    def execute(self, arguments: list[Any], with_token: bool = False) -> tuple[list[Any], Any]:
        """Runs all cores to the end; the token, if requested, is ready.

        Transfers between the emulator and the private client are exempt from the transfer guard,
        since they are not the user's.
        """
        with jax.transfer_guard("allow"):
            return self._emulate(arguments, with_token)

    def _emulate(self, arguments: list[Any], with_token: bool) -> tuple[list[Any], Any]:
        shards = [self.shards(argument) for argument in arguments]
        given = [
            {
                f"arg{i}": stored(values[rank])
                for i, values in enumerate(shards)
                if values[rank].size
            }
            for rank in range(len(self.placement))
        ]
        disturb, self._disturb = self._disturb, None
        results = self._run(given) if disturb is None else self._run_disturbed(given, disturb)
        outputs = [
            self._place([_result(rank_results, index, spec) for rank_results in results], spec)
            for index, spec in enumerate(self._results)
        ]
        return outputs, (_ready_token(self.placement) if with_token else None)

    def disturb_next(self, disturb: Disturb) -> None:
        """Calls `disturb` after every instruction of the next run."""
        self._disturb = disturb

    def _run_disturbed(self, given: list[dict[str, np.ndarray]], disturb: Disturb) -> list[Results]:
        order, host = self._runs.order, self._host
        emulation = Emulation(
            self.program, given, order=order, host=host, checks=NO_CHECKS,
            rounding=self._runs.rounding,
            observe=lambda executed: disturb(emulation, executed),
        )  # fmt: skip
        emulation.run()
        return emulation.results()

    def _place(self, values: list[np.ndarray], spec: TensorSpec) -> Any:
        """An array of the private client with a shard on every core."""
        client = self._host.client
        shards = [
            client.put(value, client.placement((core,)))
            for value, core in zip(values, self.placement.ids, strict=True)
        ]
        is_single = len(shards) == 1
        return shards[0] if is_single else client.assemble(spec, self.placement, shards)

    @cached_property
    def _use(self) -> Any:
        return account(self.program)

    def memory(self) -> Any:
        return EngineMemory(temp_size_in_bytes=self._use.hbm_by_kind[Kind.SCRATCH])

    def code_bytes(self) -> int:
        return 0

    def serialize(self) -> bytes:
        """The per-core module, since lowering it again is the fastest way to load a program."""
        return self._module


def _result(results: dict[str, np.ndarray], index: int, spec: TensorSpec) -> np.ndarray:
    name = f"res{index}"
    if name in results:
        return restored(results[name], spec)
    return np.zeros(spec.shape, np.bool_ if spec.dtype == hlo.TOKEN else spec.dtype)


def _ready_token(placement: Placement) -> Any:
    """A token that is ready."""
    return jax.device_put(np.zeros((), np.bool_), placement.devices[0])


@dataclass
class HostWork:
    """Executes the ``Host`` instructions of a program, on one device of the private client."""

    client: HostClient
    compile: Callable[..., HostExecutable]
    callbacks: Sequence[Callable[..., Any]]
    _compiled: dict[str, tuple[HostExecutable, hlo.Signature]] = field(default_factory=dict)

    def __call__(self, instruction: Host, operands: list[np.ndarray]) -> list[np.ndarray]:
        """The non-empty results of an operation on stored values."""
        executable, signature = self._executable(instruction.attributes)
        given = iter(operands)
        values = [
            executable.put(
                restored(next(given), spec)
                if np.prod(spec.shape) and spec.dtype != hlo.TOKEN
                else np.zeros(spec.shape, spec.dtype)
            )
            for spec in signature.argument_types
        ]
        outputs, _ = executable.execute(values)
        arrays = [executable.shards(output)[0] for output in outputs]
        return [stored(array).reshape(-1) for array in arrays if array.size]

    def _executable(self, text: str) -> tuple[HostExecutable, hlo.Signature]:
        if text not in self._compiled:
            with hlo.context():
                module = hlo.load(text.encode())
                signature = hlo.signature(module)
                code = hlo.dump(module)
            executable = self.compile(
                code, self.client.placement([0]), signature.result_types, {}, self.callbacks
            )
            self._compiled[text] = executable, signature
        return self._compiled[text]


ORDERS: dict[str, Callable[[int], Order]] = {
    "program": lambda _: ProgramOrder(),
    "dataflow": lambda seed: DataflowOrder(seed),
    "adversarial": lambda seed: DataflowOrder(seed, adversarial=True),
}
"""Option ``engine_order`` -> order of instructions, with a seed."""


Run = Callable[[list[dict[str, np.ndarray]]], list[Results]]


class Runs:
    """Runs programs as configured by the options, which may ask to record the runs."""

    def __init__(self, options: Options, rounding: Rounding) -> None:
        self.rounding = rounding
        self.order = ORDERS[options.engine_order](options.engine_seed)
        self._folder = Path(options.record_to) if options.record_to else None
        self._checks = Checks() if options.engine_order != "program" else NO_CHECKS
        self._first_run = options.first_run
        self._count = 0

    def of(self, program: Program, host: HostWork) -> Run:
        """A function that runs a program on the arguments of every rank.

        The function raises:
          ConfigurationError: the folder for records cannot be written to.
          RaceError, DeadlockError, UninitialisedError, OutOfBoundsError: detected by the emulator;
            the text has the user's lines.
        """
        run = self._repeat(program, host)
        if self._folder is not None:
            run = partial(self._record, self._folder, program, host, self.seeds())

        def with_users_lines(arguments: list[dict[str, np.ndarray]]) -> list[Results]:
            try:
                return run(arguments)
            except ExecutionError as error:
                raise type(error)(with_lines(str(error), lines_by_path(program))) from error

        return with_users_lines

    def _repeat(self, program: Program, host: HostWork) -> Run:
        def make(arguments: Sequence[Arguments], seed: int) -> Emulation:
            return Emulation(
                program, arguments, order=self.order, checks=self._checks, host=host,
                rounding=replace(self.rounding, seed=seed),
            )  # fmt: skip

        run, seeds = Repeated(make), self.seeds()
        return lambda arguments: run(arguments, next(seeds))

    def seeds(self) -> Iterator[int]:
        """The seeds with which the runs of a program round stochastically, one for each."""
        seed = np.array([self.rounding.seed], np.uint32)
        for number in itertools.count(self._first_run):
            yield int(random_bits(NUMPY, np.array([number % (1 << 32)], np.uint32), seed)[0])

    def _record(
        self,
        folder: Path,
        program: Program,
        host: HostWork,
        seeds: Iterator[int],
        arguments: list[dict[str, np.ndarray]],
    ) -> list[Results]:
        self._count += 1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{self._count:04d}.{program.name}.npz"
            path.touch()
        except OSError as error:
            raise ConfigurationError(
                f"NEURONJAX_RECORD_TO={str(folder)!r} cannot be written to: {error.strerror}. "
                "Set it to a writable folder, or unset it."
            ) from None
        return record(
            path, program, arguments, order=self.order, host=host, checks=self._checks,
            rounding=replace(self.rounding, seed=next(seeds)),
        )  # fmt: skip


class EngineClient(HostClient):
    """A client whose programs run on emulated engines of a chip."""

    def __init__(self, num_devices: int, target: Target, options: Options) -> None:
        super().__init__(num_devices)
        if not target.core.is_published:
            raise ConfigurationError(
                f"NEURONJAX_EXECUTOR=engine emulates NeuronCore-v2 and later; {target.chip} has an "
                "older core, whose memories AWS does not document. Choose another "
                "NEURONJAX_TARGET, or NEURONJAX_EXECUTOR=host."
            )
        self._target = target
        policy = policy_of(options, target.chip_spec)
        mode: Mode = "stochastic" if policy.rounds_stochastically else "nearest"
        self._runs = Runs(options, Rounding(mode=mode, seed=policy.seed))
        self._verify_passes = options.verify_passes

    def compile(
        self,
        module: bytes,
        placement: Placement,
        results: Sequence[TensorSpec],
        options: dict[str, Any],
        callbacks: Sequence[Callable[..., Any]],
    ) -> HostExecutable:
        program = lower_program(
            module, self._target, len(placement), verify_passes=self._verify_passes
        )
        work = HostWork(self, super().compile, callbacks)
        return EngineExecutable(program, module, placement, results, work, self._runs)

    def deserialize(
        self, data: bytes, placement: Placement, results: Sequence[TensorSpec]
    ) -> HostExecutable:
        return self.compile(data, placement, results, {}, ())
