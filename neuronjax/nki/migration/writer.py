"""Expressions of NKI 0.x, written anew in the present dialect."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuronjax.nki.legacy.isa import SIGNATURES
from neuronjax.nki.migration.indices import Affine, UntranslatedError, affine, limits
from neuronjax.nki.migration.syntax import argument, indices_of, is_none, name_called, owner_called
from neuronjax.nki.migration.text import Text
from neuronjax.nki.migration.watching import Seen, Watch
from neuronjax.program.operators import UNARY, AluOp

_BINARY = {op.value for op in AluOp} - {op.value for op in UNARY}
_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide",
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.AST] | None, str] = {
    ast.GtE: "greater_equal", ast.Gt: "greater", ast.LtE: "less_equal", ast.Lt: "less",
    ast.Eq: "equal",
}  # fmt: skip
_OF_NUMPY = {"max": "maximum", "min": "minimum", "sum": "add"}
_REDUCTIONS = ("max", "min", "sum", "prod", "mean", "all")


@dataclass
class Blocks:
    """A tensor with block dimensions: where it is declared now, and which of these are left."""

    blocks: int
    declaration: ast.Assign
    uses: list[tuple[tuple[ast.For, ...], ast.Subscript]] = field(default_factory=list)
    #: Loops over whose iterations it is reduced, whose body it does not lie in.
    reduced: set[str] = field(default_factory=set)
    #: The loops about it, and which block dimensions are left.
    loops: tuple[ast.For, ...] = ()
    kept: tuple[int, ...] = ()
    fill: str = ""


@dataclass
class Writer:
    """What expressions of a file become."""

    text: Text
    watch: Watch
    #: What `nki.language` and `nki.isa` are called.
    nl: str = "nl"
    nisa: str = "nisa"
    #: Names of indices and masks -> what they stand for.
    names: dict[str, ast.expr] = field(default_factory=dict)
    #: Names of tiles that a mask has cut -> axis -> the size that is left.
    masked: dict[str, dict[int, str]] = field(default_factory=dict)
    blocks: dict[str, Blocks] = field(default_factory=dict)
    #: Of the present statement: lines before it, what masks leave of axes, and when it runs.
    before: list[str] = field(default_factory=list)
    limits: dict[int, str] = field(default_factory=dict)
    condition: str = ""
    _temporaries: int = 0

    def begin(self) -> None:
        """Forgets the statement before."""
        self.before, self.limits, self.condition = [], {}, ""

    def is_instruction(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and self.module(node.func) == "nisa"

    def array(self, name: str, sizes: Sequence[str], seen: Seen) -> str:
        """The declaration of a tile."""
        kinds = f"dtype={self.nl}.{seen.dtype}, buffer={self.nl}.{seen.memory}"
        return f"{name} = {self.nl}.ndarray(({', '.join(sizes)}), {kinds})"

    def tile(self, name: str, seen: Seen) -> str:
        sizes = list(map(str, seen.shape if len(seen.shape) > 1 else (*seen.shape, 1)))
        for axis, limit in self.limits.items():
            if axis < len(sizes):
                sizes[axis] = f"min({sizes[axis]}, {limit})"
        return self.array(name, sizes, seen)

    def pair(self, value: ast.expr) -> tuple[str, ast.expr, ast.expr] | None:
        """Operator and operands of a value that is made of two."""
        if isinstance(value, ast.BinOp) and type(value.op) in _OPERATORS:
            return _OPERATORS[type(value.op)], value.left, value.right
        if isinstance(value, ast.Call) and len(value.args) == 2:
            name = name_called(value.func)
            if self.module(value.func) == "nl" and name in _BINARY:
                return name, value.args[0], value.args[1]
        return None

    def take_mask(self, value: ast.expr) -> None:
        for node in ast.walk(value):
            if isinstance(node, ast.keyword) and node.arg == "mask":
                is_truth = self.watch.ran(ast.Expr(value)) and not self.watch.of(node.value).kind
                if is_truth and not isinstance(node.value, ast.Constant):
                    self.condition = ast.unparse(node.value)
                else:
                    self.limits |= limits(node.value, self.names)
            if isinstance(node, ast.Name):
                self.limits |= self.masked.get(node.id, {})

    def module(self, function: ast.expr) -> str:
        if not isinstance(function, ast.Attribute):
            return ""
        owner = ast.unparse(function.value)
        if owner in (self.nisa, "nki.isa"):
            return "nisa"
        return "nl" if owner in (self.nl, "nki.language") else ""

    def operator(self, node: ast.expr) -> str:
        name = name_called(node)
        return f"{self.nl}.{_OF_NUMPY.get(name, name)}"

    def name(self, text: str) -> str:
        """A name for a value that is made before the statement."""
        self._temporaries += 1
        self.before.append(f"part{self._temporaries} = {text}")
        return f"part{self._temporaries}"

    def expression(self, node: ast.expr) -> str:
        seen = self.watch.of(node)
        if seen.kind in ("index", "mask"):
            raise UntranslatedError(f"the index {ast.unparse(node)} where no tensor is indexed")
        if isinstance(node, ast.Subscript) and self.watch.of(node.value).kind in ("tile", "blocks"):
            return self.subscript(node)
        if isinstance(node, ast.Name) and seen.kind == "tile" and self.limits:
            is_cut = self.masked.get(node.id) == self.limits
            return node.id if is_cut else f"{node.id}{self._cut(seen)}"
        pair = self.pair(node) if seen.kind == "tile" and isinstance(node, ast.BinOp) else None
        if pair is not None:
            return f"{self.nl}.{pair[0]}({self.expression(pair[1])}, {self.expression(pair[2])})"
        if isinstance(node, ast.UnaryOp) and seen.kind == "tile":
            return f"{self.nl}.negative({self.expression(node.operand)})"
        if isinstance(node, ast.Call):
            return self._call(node, seen)
        if isinstance(node, ast.Tuple | ast.List):
            parts = [self.expression(part) for part in node.elts]
            if parts != [self.text.segment(part) for part in node.elts]:
                inner = ", ".join(parts) + ("," if len(parts) == 1 else "")
                return f"({inner})" if isinstance(node, ast.Tuple) else f"[{inner}]"
        return self.text.segment(node)

    def _cut(self, seen: Seen) -> str:
        if all(axis >= len(seen.shape) for axis in self.limits):
            return ""
        cuts = [
            f":min({size}, {self.limits[axis]})" if axis in self.limits and size > 1 else ":"
            for axis, size in enumerate(seen.shape)
        ]
        return f"[{', '.join(cuts)}]"

    def _call(self, node: ast.Call, seen: Seen) -> str:
        if self.module(node.func) == "nisa" and name_called(node.func) in SIGNATURES:
            self._temporaries += 1
            name = f"part{self._temporaries}"
            self.before += [self.tile(name, seen), self.instruction(node, name)]
            return name
        dropped = ("mask", "lazy_initialization")
        arguments = [self.expression(argument) for argument in node.args]
        for keyword in node.keywords:
            if keyword.arg in dropped or (keyword.arg == "dtype" and is_none(keyword.value)):
                continue
            if keyword.arg == "buffer" and isinstance(keyword.value, ast.Call):
                arguments.append(f"buffer={self.nl}.{owner_called(keyword.value)}")
                continue
            arguments.append(f"{keyword.arg}={self.expression(keyword.value)}")
        is_reduction = name_called(node.func) in _REDUCTIONS and self.module(node.func) == "nl"
        inner = (
            self._reduced_within(node.args[0], argument(node, 1, "axis")) if is_reduction else None
        )
        if inner is not None:
            return f"{self.text.segment(node.func)}({inner[0]}, axis={inner[1]})"
        if is_reduction and len(seen.shape) > 1 and "keepdims" not in " ".join(arguments):
            arguments.append("keepdims=True")
        function = self.text.segment(node.func)
        if name_called(node.func) == "par_dim":
            return arguments[0]
        if isinstance(node.func, ast.Attribute) and self.watch.of(node.func.value).kind == "tile":
            owner = self.expression(node.func.value)
            if node.func.attr == "broadcast_to":
                return f"{self.nl}.broadcast_to({owner}, {', '.join(arguments)})"
            function = f"{owner}.{node.func.attr}"
        if name_called(node.func) in ("zeros",) and seen.memory == "psum":
            function, arguments = (
                f"{self.nl}.ndarray",
                [argument for argument in arguments if not argument.startswith("name=")],
            )
        text = f"{function}({', '.join(arguments)})"
        is_row = name_called(node.func) == "load" and text.count(":") == 1 and len(seen.shape) == 2
        return f"{self.nl}.expand_dims({text}, 1)" if is_row else text

    def _reduced_within(self, source: ast.expr, axis: ast.expr) -> tuple[str, list[int]] | None:
        """What is reduced with its dimensions that are reduced last, and their numbers then; None:
        they are the last ones."""
        given, rank = ast.literal_eval(ast.unparse(axis)), len(self.watch.of(source).shape)
        wanted = sorted(a % rank for a in (given if isinstance(given, list | tuple) else [given]))
        if wanted == list(range(rank - len(wanted), rank)) or not isinstance(source, ast.Subscript):
            return None
        order = [*(axis for axis in range(rank) if axis not in wanted), *wanted]
        walk = self._pattern(source, ast.unparse(source.value), indices_of(source), [], order)
        return walk, [rank - len(wanted) + number for number in range(len(wanted))]

    def instruction(self, call: ast.Call, place: str) -> str:
        name = name_called(call.func)
        if name == "memset":
            return f"{self.nisa}.memset({place}, {self.expression(argument(call, 1, 'value'))})"
        if name == "affine_select":
            return self._select(call, place)
        if name not in SIGNATURES:
            raise UntranslatedError(f"nisa.{name}")
        parameters = [part.partition("=")[0] for part in SIGNATURES[name].split(", ")]
        given = dict(zip(parameters, call.args, strict=False))
        given |= {keyword.arg or "": keyword.value for keyword in call.keywords}
        out = [f"dst={place}"]
        for parameter, value in given.items():
            is_default = is_none(value) or "unknown_engine" in ast.unparse(value)
            if parameter in ("mask", "dtype", "dst") or is_default:
                continue
            if parameter in ("op", "op0", "op1", "reduce_op"):
                out.append(f"{parameter}={self.operator(value)}")
            elif parameter == "axis":
                inner = self._reduced_within(given["data"], value)
                if inner is not None:
                    out = [entry for entry in out if not entry.startswith("data=")]
                    out.append(f"data={inner[0]}")
                out.append(f"axis={inner[1] if inner else ast.unparse(value)}")
            else:
                out.append(f"{parameter}={self.expression(value)}")
        return f"{self.nisa}.{name}({', '.join(out)})"

    def _select(self, call: ast.Call, place: str) -> str:
        """`affine_select`, whose predicate is a pattern, a factor and an offset now."""
        predicate = argument(call, 0, "pred")
        if isinstance(predicate, ast.Name):
            predicate = self.names.get(predicate.id, predicate)
        operator = type(predicate.ops[0]) if isinstance(predicate, ast.Compare) else None
        if not isinstance(predicate, ast.Compare) or operator not in _COMPARISONS:
            raise UntranslatedError(f"the predicate {ast.unparse(predicate)}")
        left = affine(predicate.left, self.names)
        room = left.plus(affine(predicate.comparators[0], self.names), -1)
        tile, other = argument(call, 1, "on_true_tile"), argument(call, 2, "on_false_value")
        pairs = [f"[{run.step}, {run.size}]" for axis, run in sorted(room.axes.items()) if axis]
        rows, chosen = room.axes.get(0), self.expression(tile)
        if self.watch.of(tile).memory == "psum":
            chosen = f"{self.nl}.copy({chosen})"
        given = [
            place, f"pattern=[{', '.join(pairs)}]",
            f"channel_multiplier={rows.step if rows else 0}",
            f"on_true_tile={chosen}",
            f"on_false_value={self.expression(other)}",
            f"cmp_op={self.nl}.{_COMPARISONS[operator]}", f"offset={room.base}",
        ]  # fmt: skip
        return f"{self.nisa}.affine_select({', '.join(given)})"

    def subscript(self, node: ast.Subscript) -> str:
        """A part of a tensor."""
        if not isinstance(node.value, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
            raise UntranslatedError(ast.unparse(node))
        owner = (
            self.expression(node.value) if not isinstance(node.value, ast.Name) else node.value.id
        )
        entries = indices_of(node)
        if any(isinstance(entry, ast.Constant) and entry.value is Ellipsis for entry in entries):
            seen = self.watch.of(node.value)
            is_tile = seen.kind == "tile" and len(entries) == 1
            return f"{owner}{self._cut(seen)}" if is_tile else self.text.segment(node)
        blocks = self.blocks.get(owner) if isinstance(node.value, ast.Name) else None
        first: list[str] = []
        if blocks is not None:
            first = [ast.unparse(entries[dim]) for dim in blocks.kept]
            entries = entries[blocks.blocks :]
        texts, order = list[str](), list[int]()
        try:
            for entry in entries:
                if isinstance(entry, ast.Slice):
                    texts.append(ast.unparse(entry))
                    continue
                index = affine(entry, self.names)
                texts.append(self._slice_of(index))
                order += index.axes
            if order != sorted(order) or len(order) > sum(":" in part for part in texts):
                raise UntranslatedError(f"{ast.unparse(node)}, which turns dimensions")
        except UntranslatedError:
            return self._pattern(node, owner, entries, first)
        if blocks is not None:
            texts = [*(texts[:1] or [":"]), *first, *texts[1:]]
        return f"{owner}[{', '.join(texts)}]"

    def _pattern(
        self,
        node: ast.Subscript,
        owner: str,
        entries: list[ast.expr],
        blocks: list[str],
        order: Sequence[int] = (),
    ) -> str:
        """A walk over a tensor that no slices describe, for the sizes that it was seen with."""
        whole = self.watch.of(node.value)
        own = whole.shape[len(whole.shape) - len(entries) :]
        shapes = [self.watch.of(entry).shape for entry in entries]
        sizes = np.broadcast_shapes(*shapes)
        if blocks or len(own) != len(entries) or not sizes:
            raise UntranslatedError(ast.unparse(node))
        strides = [math.prod(own[dim + 1 :]) for dim in range(len(own))]
        terms, steps = list[str](), [0] * len(sizes)
        for entry, stride in zip(entries, strides, strict=True):
            seen = self.watch.of(entry)
            if isinstance(entry, ast.Slice) or len(seen.factors) > len(steps):
                raise UntranslatedError(ast.unparse(node))
            base = affine(entry, self.names).base
            if base != "0":
                terms.append(base if stride == 1 else f"({base}) * {stride}")
            for axis, factor in enumerate(seen.factors, len(steps) - len(seen.factors)):
                steps[axis] += factor * stride
        pairs = [
            f"[{step}, {self._size(axis, str(size))}]"
            for axis, (step, size) in enumerate(zip(steps, sizes, strict=True))
        ]
        pairs = [pairs[axis] for axis in order] or pairs
        offset = " + ".join(terms) or "0"
        return f"{owner}.ap([{', '.join(pairs)}], offset={offset})"

    def _size(self, axis: int, size: str) -> str:
        limit = self.limits.get(axis)
        return size if limit is None or size == "1" else f"min({size}, {limit})"

    def _slice_of(self, index: Affine) -> str:
        if not index.axes:
            return index.base
        if len(index.axes) > 1:
            raise UntranslatedError("an index of several axes")
        ((axis, run),) = index.axes.items()
        base, size = index.base, self._size(axis, run.size)
        if run.step == 1:
            return f"0:{size}" if base == "0" else f"{base}:{base} + {size}"
        if run.step is None or run.step < 1:
            raise UntranslatedError("an index whose steps are no numbers, or run backwards")
        return f"{base}:{base} + {run.step} * ({size} - 1) + 1:{run.step}"
