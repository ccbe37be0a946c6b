"""Which 64-bit integers of a program belong to FP64 work.

The chip has no FP64, and programs that use it do not compile for the device (NCC_ESPP004). As there
is nothing to compare their numbers with, they are those of XLA:CPU. FP64 code uses 64-bit integers
internally: random bits that become a mantissa, the exponent that ``frexp`` extracts, the neighbour
that ``nextafter`` computes. If these were computed in 32 bits, as on the chip, the FP64 numbers
would be garbage.

The rule follows the flow of data. A 64-bit integer belongs to FP64 if it is converted from or to
FP64, bits or value, and so do 64-bit integers that are computed from it or together with it,
through loops, branches and calls. The flow ends at indices (they select numbers, but do not make
any), at Booleans, and at literals, which any computation may share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from neuronjax.hlo.calls import terminator
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.emit import element_type, ops_of
from neuronjax.legalize.op_sets import CLOSED, INTEGERS_64

FP64 = frozenset({"f64", "complex<f64>"})

_LITERALS = frozenset({"stablehlo.constant", "stablehlo.iota"})
_SPREADS = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "broadcast", "reshape", "convert", "slice")
)
"""Ops whose results are literals if their operands are."""
_CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
_OPAQUE = frozenset({"func.func", "func.return", "builtin.module"}) | frozenset(
    f"stablehlo.{name}"
    for name in (
        "custom_call", "infeed", "outfeed", "recv", "return", "rng_bit_generator", "send",
    )
)  # fmt: skip
"""Ops that connect no values: their values leave the program, or enter it."""

Values = Sequence[ir.Value]
Connected = Iterable[Values]
"""Values that are the same number, or are computed from each other, group by group."""


class Fp64Integers:
    """The 64-bit integers of a module that belong to FP64, as the module is now."""

    def __init__(self, module: ir.Module) -> None:
        self._parents: dict[ir.Value, ir.Value] = {}
        self._functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op
            for op in ops_of(module, frozenset({"func.func"}))
        }
        self._seeds: list[ir.Value] = []
        ops = ops_of(module)
        self._any = any(has_fp64(op) for op in ops)
        for op in ops if self._any else ():
            self._read(op)
        self._roots = {self._root(seed) for seed in self._seeds}

    def has(self, op: ir.Operation) -> bool:
        """Whether an op makes or takes 64-bit integers that belong to FP64."""
        return self._any and (self._computes(op) or any(map(self._serves, op.results)))

    def has_value(self, value: ir.Value) -> bool:
        """Whether a value is a 64-bit integer that belongs to FP64, and not a literal."""
        return is_wide(value) and self._root(value) in self._roots

    def _computes(self, op: ir.Operation) -> bool:
        integers = _integers((*op.operands, *op.results))
        return _computes_fp64(op) or any(map(self.has_value, integers))

    def _serves(self, value: ir.Value) -> bool:
        """Whether a value is a literal used by an op with such integers."""
        if not is_wide(value) or not _is_literal(value):
            return False
        users = [use.owner.operation for use in value.uses]
        return any(self._computes(op) or any(map(self._serves, op.results)) for op in users)

    def _read(self, op: ir.Operation) -> None:
        for values in self._connected(op):
            self._connect(values)
        if _computes_fp64(op):
            self._seeds += _integers((*op.operands, *op.results))

    def _connected(self, op: ir.Operation) -> Connected:
        if op.name in _OPAQUE:
            return ()
        if op.name in _CALLS:
            name = ir.FlatSymbolRefAttr(op.attributes[_CALLS[op.name]]).value
            return _called(op, self._functions[name])
        return CONNECTIONS.get(op.name, _all)(op)

    def _connect(self, values: Values) -> None:
        integers = _integers(values)
        for value in integers[1:]:
            self._parents[self._root(value)] = self._root(integers[0])

    def _root(self, value: ir.Value) -> ir.Value:
        way = []
        while (parent := self._parents.get(value, value)) != value:
            way.append(value)
            value = parent
        for passed in way:
            self._parents[passed] = value
        return value


def is_wide(value: ir.Value) -> bool:
    """Whether a value holds 64-bit integers."""
    return element_type(value) in INTEGERS_64


def has_fp64(op: ir.Operation) -> bool:
    """Whether an operand or result is FP64."""
    return any(element_type(value) in FP64 for value in (*op.operands, *op.results))


def _computes_fp64(op: ir.Operation) -> bool:
    """Whether an op computes FP64 from its operands, or other numbers from FP64, elementwise."""
    return op.name not in CONNECTIONS and op.name not in _OPAQUE | _CALLS.keys() and has_fp64(op)


def _integers(values: Iterable[ir.Value]) -> list[ir.Value]:
    return [value for value in values if is_wide(value) and not _is_literal(value)]


def _is_literal(value: ir.Value) -> bool:
    while not isinstance(value.owner, ir.Block):
        op = value.owner
        if op.name in _LITERALS:
            return True
        if op.name not in _SPREADS:
            return False
        value = op.operands[0]
    return False


# How ops connect their values


def _columns(*lists: Iterable[ir.Value]) -> Iterator[Values]:
    yield from zip(*map(tuple, lists), strict=False)


def _blocks(op: ir.Operation) -> list[ir.Block]:
    return [block for region in op.regions for block in region.blocks]


def _all(op: ir.Operation) -> Connected:
    yield (*op.operands, *op.results)


def _everything(op: ir.Operation) -> Connected:
    """Connects all operands, results, and values inside the op's regions."""
    arguments = [argument for block in _blocks(op) for argument in block.arguments]
    returned = [value for region in range(len(op.regions)) for value in _returned(op, region)]
    yield (*op.operands, *op.results, *arguments, *returned)


def _returned(op: ir.Operation, region: int) -> Values:
    return tuple(terminator(op, region).operands)


def _called(op: ir.Operation, function: ir.Operation) -> Connected:
    yield from _columns(op.operands, function.regions[0].blocks[0].arguments)
    yield from _columns(op.results, _returned(function, 0))


def _while(op: ir.Operation) -> Connected:
    condition, body = _blocks(op)
    return _columns(op.operands, op.results, condition.arguments, body.arguments, _returned(op, 1))


def _branches(op: ir.Operation) -> Connected:
    return _columns(op.results, *(_returned(op, region) for region in range(len(op.regions))))


def _same_position(op: ir.Operation) -> Connected:
    return _columns(op.operands, op.results)


def _reduce(op: ir.Operation) -> Connected:
    count, (block,) = len(op.results), _blocks(op)
    for index in range(count):
        values = [*list(op.operands)[index::count], *list(block.arguments)[index::count]]
        yield (*values, op.results[index], *_returned(op, 0)[index : index + 1])


def _sort(op: ir.Operation) -> Connected:
    (block,) = _blocks(op)
    for index, result in enumerate(op.results):
        yield (op.operands[index], result, *list(block.arguments)[2 * index : 2 * index + 2])


def _scatter(op: ir.Operation) -> Connected:
    count, (block,) = len(op.results), _blocks(op)
    operands = list(op.operands)
    data = operands[:count] + operands[count + 1 :]  # without the indices
    for index in range(count):
        values = [*data[index::count], *list(block.arguments)[index::count]]
        yield (*values, op.results[index], *_returned(op, 0)[index : index + 1])


def _data(count: int) -> Callable[[ir.Operation], Connected]:
    """The first operands are data, the others are indices."""

    def connected(op: ir.Operation) -> Connected:
        yield (*list(op.operands)[:count], *op.results)

    return connected


CONNECTIONS: dict[str, Callable[[ir.Operation], Connected]] = {
    **dict.fromkeys(CLOSED, _everything),
    "stablehlo.while": _while,
    "stablehlo.case": _branches,
    "stablehlo.if": _branches,
    "stablehlo.optimization_barrier": _same_position,
    "stablehlo.all_gather": _same_position,
    "stablehlo.all_to_all": _same_position,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce,
    "stablehlo.sort": _sort,
    "stablehlo.scatter": _scatter,
    "stablehlo.gather": _data(1),
    "stablehlo.dynamic_slice": _data(1),
    "stablehlo.dynamic_update_slice": _data(2),
    "stablehlo.dynamic_gather": _data(1),
}
"""Ops that carry several independent values, or take indices. The results of other ops depend on
all of their operands."""
