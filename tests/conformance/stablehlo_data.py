"""The StableHLO programs of the conformance archive, made ready to run.

Each program's `@main` computes a value, takes an expected one, and hands both to check calls. As
backends know no check calls, `@main` is rewritten to return the operands of those calls instead.
"""

from __future__ import annotations

import os
import re
import tarfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import func, hlo

ARCHIVE = "stablehlo_testdata.tar.xz"
PROJECT = Path(__file__).resolve().parents[2]

_CHECK = re.compile(r"check\.(expect_eq|expect_close|expect_almost_eq)")
_CHECK_ATTRIBUTES = {"api_version", "call_target_name", "has_side_effect"}
_TYPE_OR_SHAPE = re.compile(r"_(?:bfloat|float|complex|u?int|bool|\d|shape|dtype).*")


@dataclass(frozen=True)
class Program:
    """One file of the archive: its name without suffix, and its MLIR text."""

    name: str
    text: str

    @property
    def family(self) -> str:
        """The operation the file is named after: `add_int8_20_20_int8_20_20` is of `add`."""
        return _TYPE_OR_SHAPE.sub("", self.name)


@dataclass(frozen=True)
class Runnable:
    """A rewritten program.

    Attributes:
      module: `@main` takes nothing and returns got, want, got, want, …
      checks: the comparison for each such pair, a key of stablehlo_compare.COMPARISONS.
    """

    module: ir.Module
    checks: tuple[str, ...]


def archive_path() -> Path:
    """Where the archive should lie: $NEURONJAX_CONFORMANCE_DIR, or beside the project's folder."""
    folder = os.environ.get("NEURONJAX_CONFORMANCE_DIR")
    return (Path(folder) if folder else PROJECT.parent / "shared" / "conformance") / ARCHIVE


def read_programs(archive: Path) -> list[Program]:
    """All programs of the archive, by name."""
    programs = []
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            if file is not None and member.name.endswith(".mlir"):
                programs.append(Program(Path(member.name).stem, file.read().decode()))
    return sorted(programs, key=lambda program: program.name)


def make_runnable(program: Program, opaque_inputs: bool = False) -> Runnable:
    """Parses `program` and makes its `@main` return what its check calls compare.

    With `opaque_inputs` the inputs pass an optimization barrier, so that a compiler has to make
    code for the program instead of folding it into a constant.

    Raises:
      ValueError: there is no check call, or one with attributes this reader does not know.
    """
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(program.text)
        main = ir.SymbolTable(module.operation)["main"]
        block = main.regions[0].blocks[0]
        calls = [op for op in block.operations if _check_name(op)]
        if not calls:
            raise ValueError(f"{program.name}: expected check calls in @main, found none")
        for call in calls:
            _refuse_unknown_attributes(program, call)
        checks = tuple(_check_name(call) for call in calls)
        if opaque_inputs:
            _hide_inputs(block)
        operands = [operand for call in calls for operand in call.operands]
        block.operations[len(block.operations) - 1].erase()
        with ir.InsertionPoint(block):
            func.ReturnOp(operands)
        for call in calls:
            call.erase()
        results = ir.FunctionType.get([], [operand.type for operand in operands])
        main.attributes["function_type"] = ir.TypeAttr.get(results)
        if "res_attrs" in main.attributes:
            del main.attributes["res_attrs"]
        module.operation.verify()
        return Runnable(module, checks)


def _hide_inputs(block: ir.Block) -> None:
    operations = list(block.operations)
    for op, following in pairwise(operations):
        if isinstance(op, func.CallOp) and op.attributes["callee"].value == "inputs":
            with ir.InsertionPoint(following):
                barrier = hlo.OptimizationBarrierOp(list(op.results))
            for value, hidden in zip(op.results, barrier.results, strict=True):
                value.replace_all_uses_except(hidden, barrier.operation)


def _check_name(op: ir.OpView) -> str:
    if not isinstance(op, hlo.CustomCallOp):
        return ""
    found = _CHECK.fullmatch(ir.StringAttr(op.attributes["call_target_name"]).value)
    return found.group(1) if found else ""


def _refuse_unknown_attributes(program: Program, call: ir.OpView) -> None:
    unknown = set(call.attributes) - _CHECK_ATTRIBUTES
    if unknown:
        raise ValueError(
            f"{program.name}: a check call has attributes {sorted(unknown)} whose meaning is not "
            "known here; teach stablehlo_compare about them"
        )
