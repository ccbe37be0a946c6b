"""The sites where a program rounds FP32 to narrower formats, and how it does.

After the other rewrites, the roundings of a program are its conversions from FP32 to narrow floats,
and the marked ops that ``cast`` makes for formats held in FP32. ``finish`` turns the marked ops,
and all others that need more than XLA's own conversion, into bit operations.

Stochastic rounding needs random bits that differ from op to op, from element to element, from one
iteration of a loop to the next and from run to run. A number, the rounding state, is passed through
the program: ``main`` takes the number of the run, and functions and loops derive their own states.
The bits of an op are a hash of the seed, the state, the number of the op and the number of the
element. They do not depend on the core, so that replicas with equal values stay equal, as they do
on devices whose generators have the same seed.

Engines round whatever they write, stochastically while that is their mode. Conversions between
types that they have are therefore functions, which only XLA looks into.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from neuronjax import formats
from neuronjax.formats import Format
from neuronjax.hlo import module as hlo
from neuronjax.hlo.module import CONVERSION
from neuronjax.hlo.structure import move_regions
from neuronjax.jaxlib_api.mlir import func, ir, stablehlo
from neuronjax.legalize.emit import (
    LANES,
    Tensor,
    after,
    at,
    broadcast,
    convert,
    counter,
    element_type,
    filled,
    ops_of,
)
from neuronjax.legalize.op_sets import (
    MATMULS,
    NARROW_FLOATS,
    REDUCTIONS,
    ROUNDED,
    UPDATES,
    in_closed_region,
)
from neuronjax.legalize.policy import Policy
from neuronjax.rounding import nearest, random_bits, stochastic

_CAST = "neuronjax.cast"
"""Attribute of an op that represents a rounding: the name of the format."""
_MODE = "neuronjax.rounding"
"""Attribute of a rounding that is not to nearest: ``stochastic``."""
_FLUSH = "neuronjax.flush"
"""Attribute of a rounding whose subnormal results become zero."""
_CONVERT = frozenset({"stablehlo.convert"})
_MARK = frozenset({"stablehlo.reduce_precision"})
_SITE_STRIDE = 0x9E3779B1
"""Distance between the seeds of successive ops; odd, so that all seeds differ."""


_FOLDED = (formats.FLOAT16,)
"""Formats whose conversion back to FP32 XLA:CPU's code generator folds with the rounding before it
(it allows contraction), so that the rounding would be lost. They are functions of their own, which
engines read as the conversions that they are."""
_ON_ENGINES = frozenset({"bf16", "f16", "f8E4M3", "f8E5M2"})
"""Element types that engines round to when they write, in whatever mode is set."""


def cast(value: ir.Value, form: Format) -> ir.Value:
    """An FP32 value rounded to ``form``, as FP32; written at the insertion point."""
    if form.element_type is not None:
        return convert(convert(value, form.element_type), "f32")
    return _mark(value, form)


def _mark(value: ir.Value, form: Format) -> ir.Value:
    """An op that represents a rounding until ``finish`` replaces it."""
    bits = ir.IntegerType.get_signless(32)
    marked = stablehlo.ReducePrecisionOp(
        value,
        exponent_bits=ir.IntegerAttr.get(bits, form.exponent_bits),
        mantissa_bits=ir.IntegerAttr.get(bits, form.mantissa_bits),
    )
    marked.operation.attributes[_CAST] = ir.StringAttr.get(form.name)
    return marked.result


def _target(op: ir.Operation) -> Format | None:
    """The format to which ``op`` rounds FP32; ``None`` if it is not a rounding."""
    if _CAST in op.attributes:
        return formats.format_named(ir.StringAttr(op.attributes[_CAST]).value)
    element = element_type(op.results[0])
    if op.name not in _CONVERT or element_type(op.operands[0]) != "f32":
        return None
    return _CHIP_FORMATS.get(element)


_CHIP_FORMATS = {
    form.element_type: form
    for form in formats.FORMATS.values()
    if form.element_type in NARROW_FLOATS
}


def _roundings(module: ir.Module) -> list[ir.Operation]:
    return [op for op in ops_of(module, _CONVERT | _MARK) if _target(op) is not None]


def flush_results(module: ir.Module, policy: Policy) -> None:
    """Marks all roundings, and makes FP32 results of arithmetic roundings to FP32, for flushing."""
    for op in ops_of(module, ROUNDED | MATMULS | REDUCTIONS | UPDATES):
        if in_closed_region(op):
            continue
        for result in op.results:
            if element_type(result) == "f32":
                with after(op):
                    flushed = _mark(result, formats.FLOAT32)
                    result.replace_all_uses_except(flushed, flushed.owner.operation)
    for op in _roundings(module):
        op.attributes[_FLUSH] = ir.UnitAttr.get()


def make_stochastic(module: ir.Module, policy: Policy) -> None:
    """Marks the roundings to narrower formats for stochastic rounding.

    Those in regions that run once per element, such as a comparator, stay as they are: the regions
    of sums have none, for they are computed in FP32.
    """
    for op in _roundings(module):
        if _target(op) is not formats.FLOAT32 and not in_closed_region(op):
            op.attributes[_MODE] = ir.StringAttr.get("stochastic")


def finish(module: ir.Module, policy: Policy) -> bool:
    """Writes out all marked roundings.

    Returns whether ``main`` got one more argument, the number of the run as a ui32 scalar.
    """
    roundings = _roundings(module)
    to_nearest = [op for op in roundings if not _is_stochastic(op)]
    has_state = len(to_nearest) < len(roundings)
    apart = _Conversions(module)
    if has_state:
        _Threading(module, policy.seed, apart).run()
    for op in to_nearest:
        if _CAST in op.attributes or _FLUSH in op.attributes:
            _write(op, None)
        elif _target(op) in _FOLDED and not in_closed_region(op):
            apart.replace(op)
        elif _target(op) in _FOLDED:
            _write(op, None)
    return has_state


def _is_stochastic(op: ir.Operation) -> bool:
    return _MODE in op.attributes


def _write(op: ir.Operation, seed: ir.Value | None) -> None:
    """Replaces a rounding by bit operations; ``seed`` is a ui32 scalar for the stochastic ones."""
    form = _target(op)
    assert form is not None
    flush = _FLUSH in op.attributes
    with at(op):
        rounded = _rounded(Tensor(op.operands[0]), form, seed, flush_subnormals=flush)
        new = convert(rounded.value, element_type(op.results[0]))
    op.results[0].replace_all_uses_with(new)
    op.erase()


def _rounded(
    value: Tensor, form: Format, seed: ir.Value | None, *, flush_subnormals: bool = False
) -> Tensor:
    if seed is None:
        return nearest(LANES, value, form, flush_subnormals=flush_subnormals)
    numbers = Tensor(counter(value.value))
    random = random_bits(LANES, numbers, Tensor(broadcast(seed, value.value)))
    return stochastic(LANES, value, random, form, flush_subnormals=flush_subnormals)


class _Conversions:
    """Functions that convert by bit operations, one per type and mode."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._functions: dict[str, func.FuncOp] = {}

    def replace(self, op: ir.Operation, seed: ir.Value | None = None) -> None:
        """Replaces a conversion by a call; `seed` is a ui32 scalar for a stochastic one."""
        result = op.results[0].type
        mode = "to" if seed is None else "stochastically to"
        key = f"{op.operands[0].type} {mode} {result}"
        operands = [op.operands[0], *([] if seed is None else [seed])]
        if key not in self._functions:
            self._functions[key] = self._write(op, [operand.type for operand in operands])
        name = ir.FlatSymbolRefAttr.get(ir.StringAttr(self._functions[key].name).value)
        with at(op):
            call = func.CallOp([result], name, operands)
        _replace(op, call.operation)

    def _write(self, op: ir.Operation, operands: list[ir.Type]) -> func.FuncOp:
        form, result = _target(op), op.results[0].type
        assert form is not None
        name = f"neuronjax_to_{form.name}_{len(self._functions)}"
        with ir.InsertionPoint(self._module.body), ir.Location.unknown():
            function = func.FuncOp(name, (operands, [result]), visibility="private")
            with ir.InsertionPoint(function.add_entry_block()):
                value, *seeds = function.arguments
                rounded = _rounded(Tensor(value), form, seeds[0] if seeds else None)
                func.ReturnOp([convert(rounded.value, element_type(result))])
        function.attributes[CONVERSION] = ir.UnitAttr.get()
        return function


class _Threading:
    """Passes the rounding state through the functions and loops of a module."""

    def __init__(self, module: ir.Module, seed: int, apart: _Conversions) -> None:
        self._seed = seed
        self._apart = apart
        self._numbers: Iterator[int] = itertools.count(1)
        self._functions = {
            op.name.value: op for op in module.body.operations if op.operation.name == "func.func"
        }
        self._stateful = self._stateful_functions()

    def _stateful_functions(self) -> set[str]:
        """Names of the functions that round stochastically, themselves or by what they call."""
        callees = {name: _callees(function) for name, function in self._functions.items()}
        stateful = {name for name, function in self._functions.items() if _rounds(function)}
        while True:
            callers = {name for name, called in callees.items() if called & stateful}
            if callers <= stateful:
                return stateful
            stateful |= callers

    def run(self) -> None:
        for name in sorted(self._stateful):
            function = self._functions[name]
            state = hlo.add_argument(function, _state_type())
            if name == "main":
                with ir.InsertionPoint.at_block_begin(function.entry_block), ir.Location.unknown():
                    state = _hashed(state, filled(state, "ui32", self._seed))
            self._run_block(function.entry_block, state)

    def _run_block(self, block: ir.Block, state: ir.Value) -> None:
        for op in [inner.operation for inner in block.operations]:
            if _is_stochastic(op):
                self._round(op, self._seed_of(op, state))
            elif op.name == "func.call":
                self._run_call(op, state)
            elif op.name == "stablehlo.while":
                self._run_while(op, state)
            else:
                for region in op.regions:
                    for inner in region.blocks:
                        self._run_block(inner, state)

    def _round(self, op: ir.Operation, seed: ir.Value) -> None:
        marked = _CAST in op.attributes or _FLUSH in op.attributes
        if marked or element_type(op.results[0]) not in _ON_ENGINES:
            _write(op, seed)
        else:
            self._apart.replace(op, seed)

    def _number(self, state: ir.Value) -> ir.Value:
        number = next(self._numbers) * _SITE_STRIDE % (1 << 32)
        return filled(state, "ui32", number)

    def _seed_of(self, op: ir.Operation, state: ir.Value) -> ir.Value:
        """The seed of a rounding's random bits."""
        with at(op):
            return stablehlo.AddOp(state, self._number(state)).result

    def _derived(self, op: ir.Operation, state: ir.Value) -> ir.Value:
        """A derived state for all roundings inside ``op``."""
        with at(op):
            return _hashed(self._number(state), state)

    def _run_call(self, op: ir.Operation, state: ir.Value) -> None:
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if callee not in self._stateful:
            return
        derived = self._derived(op, state)
        with at(op):
            types = [result.type for result in op.results]
            call = func.CallOp(types, callee, [*op.operands, derived])
        _replace(op, call.operation)

    def _run_while(self, op: ir.Operation, state: ir.Value) -> None:
        if not any(self._is_stateful(inner) for region in op.regions for inner in region.blocks):
            return
        derived = self._derived(op, state)
        with at(op):
            types = [*(result.type for result in op.results), derived.type]
            attributes = {name: op.attributes[name] for name in op.attributes}
            operands = [*op.operands, derived]
            twin = ir.Operation.create(op.name, types, operands, attributes, regions=2)
        move_regions(op, twin)
        condition, body = (region.blocks[0] for region in twin.regions)
        for block in (condition, body):
            self._run_block(block, block.add_argument(derived.type, op.location))
        _yield_successor(body)
        _replace(op, twin)

    def _is_stateful(self, block: ir.Block) -> bool:
        for inner in block.operations:
            op = inner.operation
            if _is_stochastic(op) or _called(op) in self._stateful:
                return True
            if any(self._is_stateful(b) for region in op.regions for b in region.blocks):
                return True
        return False


def _replace(op: ir.Operation, twin: ir.Operation) -> None:
    """Lets the users of ``op`` use the first results of ``twin``."""
    for old, new in zip(op.results, twin.results, strict=False):
        old.replace_all_uses_with(new)
    op.erase()


def _called(op: ir.Operation) -> str | None:
    return ir.FlatSymbolRefAttr(op.attributes["callee"]).value if op.name == "func.call" else None


def _callees(function: func.FuncOp) -> set[str]:
    callees: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        if name := _called(op):
            callees.add(name)
        return ir.WalkResult.ADVANCE

    function.operation.walk(visit)
    return callees


def _rounds(function: func.FuncOp) -> bool:
    sites: list[bool] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if _is_stochastic(op):
            sites.append(True)
            return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    function.operation.walk(visit)
    return bool(sites)


def _hashed(number: ir.Value, state: ir.Value) -> ir.Value:
    return random_bits(LANES, Tensor(number), Tensor(state)).value


def _state_type() -> ir.Type:
    return ir.RankedTensorType.get([], ir.Type.parse("ui32"))


def _yield_successor(body: ir.Block) -> None:
    """Makes a loop body return its state, the last argument, plus one."""
    terminator = list(body.operations)[-1].operation
    state = list(body.arguments)[-1]
    with at(terminator):
        successor = stablehlo.AddOp(state, filled(state, "ui32", 1)).result
        stablehlo.ReturnOp([*terminator.operands, successor])
    terminator.erase()
