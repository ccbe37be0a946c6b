"""The compiler as a page: load, partition, legalize, host; engines are ``engine_compiler.py``.

A program arrives as StableHLO with compile options; what leaves is everything a device needs to run
it and everything JAX asks about it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from neuronjax.dump import Dump, ProgramDump
from neuronjax.errors import UnsupportedProgramError
from neuronjax.hlo import chlo
from neuronjax.hlo import module as hlo
from neuronjax.hlo.custom_calls import NATIVE_KERNEL, custom_calls
from neuronjax.hlo.module import Signature, TensorSpec
from neuronjax.hlo.structure import without_last_result
from neuronjax.hlo.tuples import flatten_tuples
from neuronjax.host import callbacks
from neuronjax.host.client import HostClient
from neuronjax.jaxlib_api import compile_options
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.lazy import Lazy
from neuronjax.legalize import numerics
from neuronjax.legalize.checks import FLAGS, Checks
from neuronjax.legalize.checks import insert as insert_checks
from neuronjax.legalize.custom_calls import expand as expand_custom_calls
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.report import Finding, Reporter, findings
from neuronjax.legalize.rules.rule import Cores
from neuronjax.partition.pointwise import replace_pointwise
from neuronjax.partition.spmd import partition

if TYPE_CHECKING:
    from neuronjax import native_kernels
else:
    native_kernels = Lazy("neuronjax.native_kernels")


@dataclass(frozen=True)
class CompiledProgram:
    """A per-core program and its facts; it knows nothing of where it will run."""

    per_core: bytes
    """Per-core StableHLO as MLIR bytecode; collectives are between replicas. If it was partitioned
    its attributes ``mhlo.spmd_output_sharding`` and ``…parameters_shardings`` say how."""
    signature: Signature
    """Types per core, donation and memory kinds."""
    num_replicas: int
    num_partitions: int
    xla_options: tuple[tuple[str, Any], ...]
    fingerprint: str
    callbacks: tuple[Callable[..., Any], ...] = ()
    takes_run_number: bool = False
    """Whether the per-core program has one more argument, a ui32 that counts its runs."""

    checks: Checks | None = None
    """How runs are watched, if they are; values may carry errors of earlier runs then."""
    files: ProgramDump | None = None
    """Where the texts of its stages go, if anywhere."""

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """Types per core of everything the per-core program returns."""
        types = self.signature.result_types
        return (*types, FLAGS) if self.flagged else types

    def as_seen(self) -> bytes:
        """The per-core program with the arguments and results that its caller knows of."""
        code = self.per_core
        if self.takes_run_number:
            code = hlo.without_last_argument(code)
        return without_last_result(code) if self.flagged else code

    @property
    def flagged(self) -> bool:
        """Whether the per-core program has one more result, the flags of its checks."""
        return self.checks is not None and self.checks.flagged

    @property
    def num_devices(self) -> int:
        return self.num_replicas * self.num_partitions


class NumericsObserver(Protocol):
    """Who changes a per-core program around the step that gives it the chip's numerics."""

    def before(self, module: ir.Module) -> None:
        """Changes the program as the user wrote it."""

    def after(self, module: ir.Module) -> None:
        """Changes the program as the chip computes it."""


def compile_program(
    code: bytes,
    options: Any,
    host: HostClient,
    policy: Policy,
    cores: Cores | None = None,
    observer: NumericsObserver | None = None,
    dump: Dump | None = None,
    reporter: Reporter | None = None,
) -> CompiledProgram:
    """Compiles StableHLO ``code`` under jaxlib CompileOptions ``options``, up to the host's part.

    ``cores`` are those that the replicas or partitions will run on, if that is known. ``reporter``
    says what the real compiler would refuse, nothing that it said of earlier programs.

    Raises:
      CompileError: not a module, or XLA's partitioner refuses it.
      LegalityError: the policy is ``strict`` and the real compiler would refuse the program.
      UnsupportedProgramError: replicas and partitions at once, dynamic shapes, unknown types.
    """
    build = options.executable_build_options
    replicas, partitions = build.num_replicas, build.num_partitions
    if replicas > 1 and partitions > 1:
        raise UnsupportedProgramError(
            f"the program asks for {replicas} replicas of {partitions} partitions; use one or the "
            "other (jax.jit with a mesh uses partitions only)."
        )
    xla_options = (*options.env_option_overrides, *_FAITHFUL[policy.numerics])
    sharded, global_signature = _per_core(code, options, host, dict(xla_options))
    files = dump.next_program(global_signature.name) if dump else None
    with hlo.context():
        module = hlo.load(sharded)
        if files:
            files.write("partition", str(module))
        (reporter or Reporter()).check(module, policy, cores)
        is_used = bool(custom_calls(module, NATIVE_KERNEL.__eq__))
        kernels = native_kernels.bind(module) if is_used else []
        expand_custom_calls(module, policy)
        checks = insert_checks(module, policy)
        if observer:
            observer.before(module)
        takes_run_number = numerics.apply(module, policy)
        if observer:
            observer.after(module)
        functions = callbacks.bind(module)
        del kernels  # The registry of callbacks is weak: they had to live until here.
        donated = _restore_donation(module, global_signature)
        local = hlo.signature(module)
        per_core = hlo.dump(module)
        if files:
            files.write("legalize", str(module))
    return CompiledProgram(
        per_core=per_core,
        signature=_seen(global_signature, local, donated),
        num_replicas=replicas,
        num_partitions=partitions,
        xla_options=xla_options,
        fingerprint=hashlib.sha256(code + options.SerializeAsString()).hexdigest(),
        callbacks=tuple(functions),
        takes_run_number=takes_run_number,
        checks=checks,
        files=files,
    )


def find_illegal(
    code: bytes, options: Any, host: HostClient, policy: Policy, cores: Cores | None = None
) -> list[Finding]:
    """What the real compiler would refuse of a program, without compiling it further.

    Raises:
      CompileError: not a module, or XLA's partitioner refuses it.
    """
    sharded, _ = _per_core(code, options, host, dict(options.env_option_overrides))
    with hlo.context():
        return findings(hlo.load(sharded), policy, cores)


def _per_core(
    code: bytes, options: Any, host: HostClient, xla_options: dict[str, Any]
) -> tuple[bytes, Signature]:
    """The program of one core as bytecode, and the signature of the program as it came."""
    with hlo.context():
        module = hlo.load(code)
        strip_memory_placement(module)
        chlo.without_composites(module)
        flatten_tuples(module)
        signature = hlo.signature(module)
        hlo.drop_layouts(module)
        partitions = options.executable_build_options.num_partitions
        if partitions > 1:
            replace_pointwise(module)
        program = hlo.dump(module)
    if partitions == 1:
        return program, signature

    def compile_for_dump(text: bytes, dump_options: dict[str, Any]) -> None:
        results = len(signature.results)
        host.compile_partitions(text, partitions, results, options, xla_options | dump_options)

    return partition(program, partitions, compile_for_dump), signature


_FAITHFUL: dict[str, tuple[tuple[str, Any], ...]] = {
    "ieee": (),
    "chip": (("xla_allow_excess_precision", False), ("xla_cpu_enable_fast_math", False)),
}
"""What keeps XLA from optimizing the roundings, infinities and NaNs of a program away."""


def strip_memory_placement(module: ir.Module) -> None:
    """Removes memory-kind annotations: host and device memory are the same to the host executor."""
    for op in custom_calls(module, "annotate_device_placement".__eq__):
        for result, operand in zip(op.results, op.operands, strict=True):
            result.replace_all_uses_with(operand)
        op.erase()


def _seen(whole: hlo.Signature, local: hlo.Signature, donated: Sequence[int]) -> hlo.Signature:
    """What the caller of the program sees of one core: ``local`` may have more arguments and
    results, for the platform's own use."""
    arguments = tuple(
        replace(argument, type=kind, donated=index in donated)
        for index, (argument, kind) in enumerate(
            zip(whole.arguments, local.argument_types, strict=False)
        )
    )
    results = tuple(
        replace(result, type=kind)
        for result, kind in zip(whole.results, local.result_types, strict=False)
    )
    return hlo.Signature(whole.name, arguments, results, whole.mesh)


def _restore_donation(module: ir.Module, original: Signature) -> tuple[int, ...]:
    """Marks the donated arguments again whose memory a result takes; returns them.

    A way through HLO leaves only aliases of the whole module, which a further way would take for a
    contradiction of the marks. Arguments that no result takes stay with their owner: nobody may
    write to them.
    """
    for name in ("mhlo.input_output_alias", "mhlo.buffer_donor"):
        if name in module.operation.attributes:
            del module.operation.attributes[name]
    function = hlo.main_function(module)
    attributes = hlo.attributes(function, "arg_attrs")
    named = hlo.donations(module)
    donations = {index: named.get(index) for index in original.donated}
    taken = _taken(donations, hlo.signature(module), len(original.results))
    for index in original.donated:
        if index not in taken:
            attributes[index].pop("jax.buffer_donor", None)
        elif donations[index] is None:
            attributes[index]["jax.buffer_donor"] = ir.BoolAttr.get(True)
    function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in attributes])
    return taken


def _taken(donations: Mapping[int, int | None], local: Signature, results: int) -> tuple[int, ...]:
    """Donated arguments whose memory a result takes: one that is named, or one of as many bytes.

    So does XLA (OptimizeInputOutputBufferAlias).
    """
    named = set(donations.values())
    free = Counter(
        kind.nbytes for index, kind in enumerate(local.result_types[:results]) if index not in named
    )
    taken = []
    for index, result in donations.items():
        size = local.argument_types[index].nbytes
        if result is None:
            if not free[size]:
                continue
            free[size] -= 1
        taken.append(index)
    return tuple(taken)


def device_assignment(options: Any, default: int) -> np.ndarray:
    """The (replicas, partitions) table of global device ids in ``options``.

    Without one, consecutive devices from ``default`` on are taken.
    """
    build = options.executable_build_options
    assignment = compile_options.assignment(options)
    if assignment is None:
        shape = (build.num_replicas, build.num_partitions)
        return np.arange(default, default + shape[0] * shape[1]).reshape(shape)
    return assignment
