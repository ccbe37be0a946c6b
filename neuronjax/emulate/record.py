"""Recorded runs: a file from which a run can be replayed bit by bit, up to any instruction.

A record is an npz archive: the program as text, its arguments, the order with its seed, the
rounding, the results of the host's function, and a digest of the results. Replay needs nothing
else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, Unpack, get_args, get_type_hints

import numpy as np

from neuronjax.emulate.checks import NO_CHECKS, Checks
from neuronjax.emulate.core import (
    Arguments,
    DataflowOrder,
    Emulation,
    Observer,
    Order,
    ProgramOrder,
    Results,
    RunOptions,
)
from neuronjax.emulate.element_types import PLAIN, Rounding, numpy_dtype
from neuronjax.emulate.unit import HostFunction
from neuronjax.errors import NeuronError, RecordError, quoted
from neuronjax.program.control import Host
from neuronjax.program.operand import Kind
from neuronjax.program.program import Program
from neuronjax.program.text import format as format_program
from neuronjax.program.text import parse
from neuronjax.program.verify import verify, verify_form

VERSION = 1
_ORDERS: dict[str, type] = {"program": ProgramOrder, "dataflow": DataflowOrder}
_ENTRY = "entry"
_T = TypeVar("_T")


def record(
    path: Path | str,
    program: Program,
    arguments: Sequence[Arguments],
    **options: Unpack[RunOptions],
) -> list[Results]:
    """Runs a program as `core.run` does, and writes a record of the run to `path`.

    If the run fails, the record is written without a digest of results.
    """
    order, host = options.get("order") or ProgramOrder(), options.get("host")
    answers: list[list[np.ndarray]] = []

    def answering(instruction: Host, sources: list[np.ndarray]) -> list[np.ndarray]:
        assert host is not None
        answers.append(host(instruction, sources))
        return answers[-1]

    options |= {"order": order, "host": answering if host else None}
    emulation = Emulation(program, arguments, **options)
    results: list[Results] | None = None
    try:
        emulation.run()
        results = emulation.results()
    finally:
        _save(
            Path(path), program, arguments, order, options.get("rounding", PLAIN), answers, results
        )
    return results


def _save(
    path: Path,
    program: Program,
    arguments: Sequence[Arguments],
    order: Order,
    rounding: Rounding,
    answers: list[list[np.ndarray]],
    results: list[Results] | None,
) -> None:
    kind = next(name for name, order_type in _ORDERS.items() if isinstance(order, order_type))
    entry = {
        "version": VERSION,
        "order": {"kind": kind, **dataclasses.asdict(order)},
        "rounding": dataclasses.asdict(rounding),
        "digest": None if results is None else digest(results),
        "answers": [len(arrays_of_call) for arrays_of_call in answers],
    }
    arrays = {_ENTRY: _text(json.dumps(entry)), "program": _text(format_program(program))}
    for rank, own in enumerate(arguments):
        arrays |= {f"argument/{rank}/{name}": _bytes(value) for name, value in own.items()}
    for call, given in enumerate(answers):
        arrays |= {f"host/{call}/{place}": _bytes(array) for place, array in enumerate(given)}
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _text(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _bytes(value: np.ndarray) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)


def _made(kind: type[_T], given: dict[str, Any]) -> _T:
    """A dataclass made of the given fields. TypeError, ValueError: a field has a bad value."""
    hints = get_type_hints(kind)
    for name, value in given.items():
        literals = get_args(hints[name])
        if literals and value not in literals:
            raise ValueError(f"{name} is {quoted(value)}, not one of {', '.join(literals)}")
        if not literals and type(value) is not hints[name]:
            raise TypeError(f"{name} is {quoted(value)}, not of type {hints[name].__name__}")
    return kind(**given)


def digest(results: Sequence[Results]) -> str:
    """SHA-256 of results in hexadecimal; equal if and only if all bits are."""
    sha = hashlib.sha256()
    for rank_results in results:
        for name in sorted(rank_results):
            value = np.ascontiguousarray(rank_results[name])
            sha.update(f"{name}:{value.dtype}{value.shape};".encode())
            sha.update(value.tobytes())
    return sha.hexdigest()


@dataclass(frozen=True)
class Replay:
    """A recorded run.

    Attributes:
      program: what ran; `arguments`: for each rank; `order`, `rounding`: how it ran.
      digest: that of the results; None: the run failed.
    """

    program: Program
    arguments: list[dict[str, np.ndarray]]
    order: Order
    rounding: Rounding
    digest: str | None
    _answers: list[list[np.ndarray]] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path | str) -> Replay:
        """Reads a record.

        Raises:
          RecordError: the file is not a record, is damaged, or is of another version.
        """
        try:
            with open(path, "rb") as file:
                if not zipfile.is_zipfile(file):
                    raise ValueError("it is not an archive, or is truncated")
            with np.load(path, allow_pickle=False) as archive:
                arrays = dict(archive)
            entry = json.loads(arrays[_ENTRY].tobytes())
            if entry["version"] != VERSION:
                raise ValueError(f"its version is {quoted(entry['version'])}, not {VERSION}")
            return cls._of(entry, arrays)
        except OSError as error:
            raise RecordError(
                f"{path} cannot be opened ({error.strerror or error}). Give a file that a run "
                "recorded."
            ) from error
        except Exception as error:  # damaged archives make numpy and zipfile raise anything
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise RecordError(
                f"{path} cannot be read as a record of a run ({why[:300]}). Record the run again."
            ) from error

    @classmethod
    def _of(cls, entry: dict[str, Any], arrays: dict[str, np.ndarray]) -> Replay:
        program = parse(arrays["program"].tobytes().decode())
        for finding in verify_form(program):
            raise ValueError(str(finding))
        order = dict(entry["order"])
        wanted = [buffer for buffer in program.buffers if buffer.kind is Kind.ARGUMENT]
        arguments = [
            {
                buffer.name: arrays[f"argument/{rank}/{buffer.name}"]
                .view(numpy_dtype(buffer.dtype))
                .reshape(buffer.shape)
                for buffer in wanted
            }
            for rank in range(program.ranks)
        ]
        answers = [
            [arrays[f"host/{call}/{place}"] for place in range(count)]
            for call, count in enumerate(entry["answers"])
        ]
        made: Order = _made(_ORDERS[order.pop("kind")], order)
        rounding = _made(Rounding, entry["rounding"])
        recorded = entry["digest"]
        if not isinstance(recorded, str | None):
            raise TypeError(f"the digest is {quoted(recorded)}, not a string")
        return cls(program, arguments, made, rounding, recorded, answers)

    def run(
        self,
        *,
        to: int | None = None,
        checks: Checks = NO_CHECKS,
        observe: Observer | None = None,
    ) -> Emulation:
        """Runs it again, to the end or to its first `to` instructions, counted over all ranks.

        Raises:
          RecordError: the results differ from the recorded ones; or the program cannot run, because
            it breaks rules of the hardware.
          Whatever the recorded run raised, if `checks` detect it.
        """
        emulation = Emulation(
            self.program, self.arguments, order=self.order, host=self._host(), checks=checks,
            rounding=self.rounding, observe=observe,
        )  # fmt: skip
        try:
            emulation.run(to=to)
        except NeuronError:
            raise
        except Exception as error:  # instructions with illegal operands may raise anything
            for finding in verify(self.program):
                raise RecordError(
                    f"{self.program.name} cannot be replayed: {finding} Record the run again."
                ) from error
            raise
        if to is None and self.digest not in (None, digest(emulation.results())):
            raise RecordError(
                f"the results of {self.program.name} differ from the recorded ones. Replay it with"
                " the version of neuronjax that made the record."
            )
        return emulation

    def _host(self) -> HostFunction:
        answers = iter(self._answers)

        def answer(instruction: Host, sources: list[np.ndarray]) -> list[np.ndarray]:
            return [
                given.view(numpy_dtype(dst.element_type)).reshape(
                    (dst.partitions, *dst.sizes) if dst.buffer.on_chip else dst.sizes
                )
                for given, dst in zip(next(answers), instruction.dsts, strict=True)
            ]

        return answer

    def buffer(
        self, name: str, *, to: int | None = None, rank: int = 0, slot: int = 0
    ) -> np.ndarray:
        """The contents of a buffer after `to` instructions, or at the end.

        Raises:
          MemoryAccessError: there is no such buffer.
        """
        return self.run(to=to).buffer(name, rank=rank, slot=slot)
